package weight

import (
	"encoding/json"
	"runtime"
)

// yieldAfter is the number of bytes after which the scan lets other goroutines run.
const yieldAfter = 64 << 10

// container is a JSON object or list in which the current position of the scan is.
type container struct {
	node  *node  // type of an object, nil if unknown
	items *field // items of a list, nil if their type is unknown
	list  bool
}

// JSON returns the weight of a JSON body. The result is meaningless if the decoder rejects the body. The time is
// linear in the size of the body.
func (t *Table) JSON(data []byte) int64 {
	weight := int64(len(data)) * textFactor
	var buffer [64]container
	stack := buffer[:0]
	next, key := t.top, false // the field of the next value, and whether a key precedes this value
	for i, yielded := 0, 0; i < len(data); {
		if i-yielded > yieldAfter {
			yielded = i
			runtime.Gosched()
		}
		switch c := data[i]; c {
		case ' ', '\t', '\r', '\n', ':':
			i++
		case ',':
			i++
			if len(stack) > 0 {
				top := &stack[len(stack)-1]
				next, key = top.items, !top.list
			}
		case '{', '[':
			i++
			weight += valueWeight(next)
			in := containerOf(next, c)
			if c == '{' {
				weight += mapWeight
			}
			stack = append(stack, in)
			next, key = in.items, !in.list
		case '}', ']':
			i++
			if len(stack) > 0 {
				stack = stack[:len(stack)-1]
			}
		case '"':
			end, escaped := textEnd(data, i+1)
			if key && len(stack) > 0 {
				if next, key = stack[len(stack)-1].node.fieldOfKey(data[i+1:end], escaped), false; next == nil {
					weight += keyWeight
				}
			} else {
				weight += valueWeight(next)
			}
			i = end + 1
		default:
			weight += valueWeight(next)
			i = literalEnd(data, i)
		}
	}
	return weight
}

func valueWeight(f *field) int64 {
	if f == nil {
		return itemWeight
	}
	return itemWeight + f.memory
}

// containerOf returns the container for an object or a list that is the value of f. open is the opening bracket.
func containerOf(f *field, open byte) container {
	c := container{list: open == '['}
	if f == nil || f.node == nil {
		return c
	}
	switch n := f.node; {
	case c.list && n.list != nil:
		c.items = n.list
	case c.list:
		c.items = n.items
	case n.object != nil:
		c.node = n.object
	default:
		c.node = n
	}
	return c
}

// fieldOfKey returns the field for a JSON key, or nil if the field is unknown. The key has no quotes, but its escapes
// are not decoded.
func (n *node) fieldOfKey(key []byte, escaped bool) *field {
	switch {
	case n == nil:
		return nil
	case n.values != nil:
		return n.values
	case escaped:
		var text string
		if json.Unmarshal(append(append([]byte{'"'}, key...), '"'), &text) != nil {
			return nil
		}
		return n.byName[text]
	}
	return n.byName[string(key)]
}

// textEnd returns the end of the string that begins at i. It also reports whether the string has escapes.
func textEnd(data []byte, i int) (end int, escaped bool) {
	for ; i < len(data); i++ {
		switch data[i] {
		case '"':
			return i, escaped
		case '\\':
			escaped = true
			i++
		}
	}
	return len(data), escaped
}

// literalEnd returns the end of the number, boolean or null that begins at i.
func literalEnd(data []byte, i int) int {
	for i++; i < len(data); i++ {
		switch data[i] {
		case ' ', '\t', '\r', '\n', ',', ':', '}', ']', '{', '[', '"':
			return i
		}
	}
	return i
}

// Tree returns the weight of an object that was decoded without its Go type.
func (t *Table) Tree(tree map[string]any) int64 { return treeWeight(tree, t.top) }

func treeWeight(v any, f *field) int64 {
	weight := valueWeight(f)
	switch v := v.(type) {
	case map[string]any:
		weight += mapWeight
		in := containerOf(f, '{')
		for key, member := range v {
			next := in.node.fieldByName(key)
			if next == nil {
				weight += keyWeight
			}
			weight += textFactor*int64(len(key)) + treeWeight(member, next)
		}
	case []any:
		in := containerOf(f, '[')
		for _, item := range v {
			weight += treeWeight(item, in.items)
		}
	case string:
		weight += textFactor * int64(len(v))
	}
	return weight
}

func (n *node) fieldByName(key string) *field {
	switch {
	case n == nil:
		return nil
	case n.values != nil:
		return n.values
	}
	return n.byName[key]
}
