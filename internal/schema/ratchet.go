package schema

import (
	"strconv"

	"github.com/trellis-k8s/trellis/internal/object"
)

// correlation is a value together with the old value that it replaces (KEP-4008). If the two are equal, errors in the
// value are ignored. A nil correlation means that there is no old value. A correlation must be used by one goroutine
// only.
type correlation struct {
	value, old any
	n          *node // nil means that values below have no old values

	equality equality
	fields   map[string]*correlation
	elements map[int]*correlation
	byKey    map[any]any // old items of a list-type map; nil before the first use
}

type equality uint8

const (
	unknown equality = iota
	same
	different
)

// correlate returns the correlation of an object with the old object. n is the schema of both. It returns nil if old
// is nil.
func correlate(t, old object.Tree, n *node) *correlation {
	if old == nil {
		return nil
	}
	return &correlation{value: t, old: old, n: n}
}

// key returns the correlation of a field. It returns nil if the field is missing in one of the two objects or in the
// schema.
func (c *correlation) key(name string) *correlation {
	if c == nil || c.n == nil {
		return nil
	}
	if known, ok := c.fields[name]; ok {
		return known
	}
	value, ok := c.value.(object.Tree)
	if !ok {
		return nil
	}
	old, ok := c.old.(object.Tree)
	if !ok {
		return nil
	}
	child := c.n.child(name)
	if child == nil {
		return nil
	}
	v, ok := value[name]
	if !ok {
		return nil
	}
	o, ok := old[name]
	if !ok {
		return nil
	}
	if c.fields == nil {
		c.fields = map[string]*correlation{}
	}
	c.fields[name] = &correlation{value: v, old: o, n: child}
	return c.fields[name]
}

// child returns the schema of the field name, or nil.
func (n *node) child(name string) *node {
	if n == nil {
		return nil
	}
	if child, ok := n.properties[name]; ok {
		return child
	}
	if n.additional != nil {
		return n.additional.schema
	}
	return nil
}

// index returns the correlation of an item of a list-type map. It finds the old item by the keys. For items of other
// lists it returns nil.
func (c *correlation) index(i int) *correlation {
	if c == nil || c.n == nil || c.n.listType != "map" {
		return nil
	}
	if known, ok := c.elements[i]; ok {
		return known
	}
	list, ok := c.value.([]any)
	if !ok || i >= len(list) {
		return nil
	}
	old := c.oldElement(list[i])
	if old == nil || c.n.items == nil {
		return nil
	}
	if c.elements == nil {
		c.elements = map[int]*correlation{}
	}
	c.elements[i] = &correlation{value: list[i], old: old, n: c.n.items}
	return c.elements[i]
}

// oldElement returns the first old item with the keys of v.
func (c *correlation) oldElement(v any) any {
	if c.byKey == nil {
		c.byKey = map[any]any{}
		old, _ := c.old.([]any)
		if c.n.typ != "array" || len(c.n.listKeys) == 0 {
			old = nil
		}
		for _, e := range old {
			key, ok := correlationKey(e, c.n.listKeys)
			if _, taken := c.byKey[key]; ok && !taken {
				c.byKey[key] = e
			}
		}
	}
	if key, ok := correlationKey(v, c.n.listKeys); ok {
		return c.byKey[key]
	}
	return nil
}

// correlationKey returns the key of an item of a list-type map. It returns false if one of the keys is missing or not
// a scalar. If there are several keys, floats are compared with six digits, as in upstream.
func correlationKey(v any, keys []string) (any, bool) {
	t, ok := v.(object.Tree)
	if !ok {
		return nil, false
	}
	var out []byte
	for _, key := range keys {
		v := t[key]
		switch v := v.(type) {
		case bool:
			out = strconv.AppendBool(append(out, 0), v)
		case float64:
			out = strconv.AppendFloat(append(out, 0), v, 'f', 6, 64)
		case int64:
			out = strconv.AppendInt(append(out, 0), v, 10)
		case string:
			out = strconv.AppendQuote(append(out, 0), v)
		default:
			return nil, false
		}
		if len(keys) == 1 {
			return v, true
		}
	}
	return string(out), true
}

// equal reports whether the value equals its old value according to the schema. The order of the items of a list-type
// map is ignored. An object with unknown fields never equals another object.
func (c *correlation) equal() bool {
	if c == nil {
		return false
	}
	if c.equality == unknown {
		c.equality = different
		if c.compare() {
			c.equality = same
		}
	}
	return c.equality == same
}

func (c *correlation) compare() bool {
	switch value := c.value.(type) {
	case []any:
		old, ok := c.old.([]any)
		return ok && len(old) == len(value) && c.compareLists(value, old)
	case object.Tree:
		old, ok := c.old.(object.Tree)
		if !ok || len(old) != len(value) {
			return false
		}
		for name := range value {
			if !c.key(name).equal() {
				return false
			}
		}
		return true
	}
	return object.Equal(c.value, c.old)
}

func (c *correlation) compareLists(value, old []any) bool {
	if c.n == nil || c.n.listType != "map" {
		return object.Equal(value, old)
	}
	for i := range value {
		if !c.index(i).equal() {
			return false
		}
	}
	return true
}
