package merge

import (
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

const (
	// maxItemMoves limits the number of list items that one JSON patch moves. An operation on an item copies the
	// list. A move takes about 11 ns, so the limit corresponds to one second.
	maxItemMoves = 80_000_000
	// maxLevelBytes limits the number of bytes that one JSON patch parses and encodes. The library parses and
	// encodes a value once for each level of a path, which takes about 16 ns per byte.
	maxLevelBytes = 56 << 20
)

// checkCost returns a 413 StatusError for a patch that exceeds one of the limits.
func checkCost(operations jsonpatch.Patch, doc []byte) error {
	var c patchCost
	for _, operation := range operations {
		c.add(operation)
	}
	// A list has at most one item per two bytes.
	if bound := (len(doc) + c.values) / 2; c.moves*(bound+c.moves) > maxItemMoves {
		longest := max(longestList(doc), c.longest)
		moved := c.moves * (longest + c.moves/2)
		if err := limit("list items moved by a JSON patch", moved, maxItemMoves); err != nil {
			return err
		}
	}
	added := c.values
	if c.copies {
		added += maxJSONPatchCopyBytes
	}
	if added *= c.depth; c.depth*len(doc)+added > maxLevelBytes {
		read := levelBytes(doc, c.depth) + added
		return limit("bytes parsed for a JSON patch", read, maxLevelBytes)
	}
	return nil
}

// patchCost is the part of a patch's cost that does not depend on the document.
type patchCost struct {
	moves   int  // number of operations that copy a whole list
	values  int  // total bytes of all values
	longest int  // length of the longest list in a value
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
		if kind == "test" { // a test compares whole values
			depth += depthOf(*value)
		}
	}
	c.depth = max(c.depth, depth)
}

// isIndex reports whether the last part of a path may be the index of a list item. The part "-" is not an index,
// because the library appends an item without copying the list.
func isIndex(part string) bool {
	return strings.Trim(part, "+-0123456789") == "" && part != "-"
}

// scanStructure calls visit for each bracket and comma of a JSON text outside of strings.
func scanStructure(text []byte, visit func(at int, c byte)) {
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
	var open []int // number of items seen in each open list
	scanStructure(text, func(_ int, c byte) {
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
	scanStructure(text, func(_ int, c byte) {
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

// levelBytes returns the total length of all objects and lists down to a level.
func levelBytes(text []byte, level int) (n int) {
	depth, last := 0, 0
	scanStructure(text, func(at int, c byte) {
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
