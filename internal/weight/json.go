package weight

import (
	"encoding/json"
	"runtime"
)

// yieldAfter is the number of bytes after which the scan lets other goroutines run.
const yieldAfter = 64 << 10

// container is an object or a list that the scan is within; of is nil where its type is not known.
type container struct {
	of    *node
	items *field // of a list
	list  bool
}

// JSON is the weight of a body in JSON. What a decoder refuses may weigh anything up to there. The time is linear in the size of
// the body.
func (t *Table) JSON(data []byte) int64 {
	weight := int64(len(data)) * textFactor
	var room [64]container
	stack := room[:0]
	next, key := t.top, false // the field of the next value; whether a key comes first
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
			weight += value(next)
			in := within(next, c)
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
				if next, key = stack[len(stack)-1].of.named(data[i+1:end], escaped), false; next == nil {
					weight += keyWeight
				}
			} else {
				weight += value(next)
			}
			i = end + 1
		default:
			weight += value(next)
			i = literalEnd(data, i)
		}
	}
	return weight
}

func value(f *field) int64 {
	if f == nil {
		return itemWeight
	}
	return itemWeight + f.each
}

// within is what lies in an object or a list that is the value of f.
func within(f *field, opens byte) container {
	c := container{list: opens == '['}
	if f == nil || f.of == nil {
		return c
	}
	switch n := f.of; {
	case c.list && n.list != nil:
		c.items = n.list
	case c.list:
		c.items = n.items
	case n.object != nil:
		c.of = n.object
	default:
		c.of = n
	}
	return c
}

// named finds the field of a key, which is still quoted.
func (n *node) named(key []byte, escaped bool) *field {
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

// textEnd is where the text that begins at i ends, and whether it has escapes.
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

// literalEnd is where a number or a word ends that begins at i.
func literalEnd(data []byte, i int) int {
	for i++; i < len(data); i++ {
		switch data[i] {
		case ' ', '\t', '\r', '\n', ',', ':', '}', ']', '{', '[', '"':
			return i
		}
	}
	return i
}

// Tree is the weight of an object that has been decoded without its type.
func (t *Table) Tree(tree map[string]any) int64 { return treeValue(tree, t.top) }

func treeValue(v any, f *field) int64 {
	weight := value(f)
	switch v := v.(type) {
	case map[string]any:
		weight += mapWeight
		in := within(f, '{')
		for key, part := range v {
			next := in.of.plain(key)
			if next == nil {
				weight += keyWeight
			}
			weight += textFactor*int64(len(key)) + treeValue(part, next)
		}
	case []any:
		in := within(f, '[')
		for _, part := range v {
			weight += treeValue(part, in.items)
		}
	case string:
		weight += textFactor * int64(len(v))
	}
	return weight
}

func (n *node) plain(key string) *field {
	switch {
	case n == nil:
		return nil
	case n.values != nil:
		return n.values
	}
	return n.byName[key]
}
