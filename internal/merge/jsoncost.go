package merge

import (
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

const (
	// maxItemMoves limits the list items that one JSON patch moves. An operation on an item copies the list. A move takes about
	// 11 ns, so the limit stands for one second.
	maxItemMoves = 80_000_000
	// maxLevelBytes limits the bytes that one JSON patch parses and encodes. The library does that once for each level of a path,
	// which takes about 16 ns a byte.
	maxLevelBytes = 56 << 20
)

// checkCost returns a 413 StatusError for a patch that exceeds one of the limits.
func checkCost(operations jsonpatch.Patch, doc []byte) error {
	var c patchCost
	for _, operation := range operations {
		c.add(operation)
	}
	// A list has at most one item for two bytes.
	if most := (len(doc) + c.values) / 2; c.moves*(most+c.moves) > maxItemMoves {
		longest := max(longestList(doc), c.longest)
		if err := limit("list items that a JSON patch moves", c.moves*(longest+c.moves/2), maxItemMoves); err != nil {
			return err
		}
	}
	brought := c.values
	if c.copies {
		brought += maxJSONPatchCopyBytes
	}
	if brought *= c.depth; c.depth*len(doc)+brought > maxLevelBytes {
		return limit("bytes that a JSON patch reads at the levels of its paths", levelBytes(doc, c.depth)+brought, maxLevelBytes)
	}
	return nil
}

// patchCost is the part of the cost of a patch that does not depend on the document.
type patchCost struct {
	moves   int  // copies of whole lists
	values  int  // bytes of all values
	longest int  // items of the longest list in a value
	depth   int  // levels of the deepest path or tested value
	copies  bool // the patch has copy operations
}

func (c *patchCost) add(operation jsonpatch.Operation) {
	kind := operation.Kind()
	c.copies = c.copies || kind == "copy"
	depth := 0
	for _, part := range [...]func() (string, error){operation.Path, operation.From} {
		path, err := part()
		if err != nil {
			continue
		}
		depth = max(depth, strings.Count(path, "/"))
		if kind != "test" && kind != "replace" && isIndex(path[strings.LastIndexByte(path, '/')+1:]) {
			c.moves++
		}
	}
	if value := operation["value"]; value != nil {
		c.values += len(*value)
		c.longest = max(c.longest, longestList(*value))
		if kind == "test" { // compares whole values
			depth += depthOf(*value)
		}
	}
	c.depth = max(c.depth, depth)
}

// isIndex reports whether the last part of a path may be the index of a list item. The library appends at "-" without a copy.
func isIndex(part string) bool {
	return strings.Trim(part, "+-0123456789") == "" && part != "-"
}

// brackets calls visit for each bracket and comma of a JSON text that is not part of a string.
func brackets(text []byte, visit func(at int, c byte)) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '{', '[', '}', ']', ',':
			visit(i, c)
		}
	}
}

// longestList returns the number of items of the longest list or object.
func longestList(text []byte) (longest int) {
	var open []int // items so far, of each list that is open
	brackets(text, func(_ int, c byte) {
		switch c {
		case '{', '[':
			open = append(open, 1)
		case ',':
			if len(open) > 0 {
				open[len(open)-1]++
			}
		default:
			if n := len(open); n > 0 {
				longest, open = max(longest, open[n-1]), open[:n-1]
			}
		}
	})
	return longest
}

// depthOf returns the number of levels of a value.
func depthOf(text []byte) (deepest int) {
	depth := 0
	brackets(text, func(_ int, c byte) {
		switch c {
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	})
	return deepest
}

// levelBytes adds up the lengths of all objects and lists down to a level.
func levelBytes(text []byte, level int) (n int) {
	depth, last := 0, 0
	brackets(text, func(at int, c byte) {
		n += min(depth, level) * (at - last)
		last = at
		switch c {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
	})
	return n
}
