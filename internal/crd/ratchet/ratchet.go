// Package ratchet finds the old value of each value in an update, so that errors in unchanged values can be ignored
// (KEP-4008).
package ratchet

import (
	"strconv"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Correlation is a value together with the old value that it replaces (KEP-4008). If the two are equal, errors in the
// Value are ignored. A nil correlation means that there is no old value. A correlation must be used by one goroutine
// only.
type Correlation struct {
	Value, Old any
	N          *schema.Node // nil means that values below have no old values

	equality equality
	fields   map[string]*Correlation
	elements map[int]*Correlation
	byKey    map[any]any // Old items of a list-type map; nil before the first use
}

type equality uint8

const (
	unknown equality = iota
	same
	different
)

// Correlate returns the correlation of an object with the old object. n is the schema of both. It returns nil if old
// is nil.
func Correlate(t, old object.Tree, n *schema.Node) *Correlation {
	if old == nil {
		return nil
	}
	return &Correlation{Value: t, Old: old, N: n}
}

// Key returns the correlation of a field. It returns nil if the field is missing in one of the two objects or in the
// schema.
func (c *Correlation) Key(name string) *Correlation {
	if c == nil || c.N == nil {
		return nil
	}
	if known, ok := c.fields[name]; ok {
		return known
	}
	value, ok := c.Value.(object.Tree)
	if !ok {
		return nil
	}
	old, ok := c.Old.(object.Tree)
	if !ok {
		return nil
	}
	child := c.N.Child(name)
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
		c.fields = map[string]*Correlation{}
	}
	c.fields[name] = &Correlation{Value: v, Old: o, N: child}
	return c.fields[name]
}

// Index returns the correlation of an item of a list-type map. It finds the old item by the keys. For items of other
// lists it returns nil.
func (c *Correlation) Index(i int) *Correlation {
	if c == nil || c.N == nil || c.N.ListType != "map" {
		return nil
	}
	if known, ok := c.elements[i]; ok {
		return known
	}
	list, ok := c.Value.([]any)
	if !ok || i >= len(list) {
		return nil
	}
	old := c.OldElement(list[i])
	if old == nil || c.N.Items == nil {
		return nil
	}
	if c.elements == nil {
		c.elements = map[int]*Correlation{}
	}
	c.elements[i] = &Correlation{Value: list[i], Old: old, N: c.N.Items}
	return c.elements[i]
}

// OldElement returns the first old item with the keys of v.
func (c *Correlation) OldElement(v any) any {
	if c.byKey == nil {
		c.byKey = map[any]any{}
		old, _ := c.Old.([]any)
		if c.N.Type != "array" || len(c.N.ListMapKeys) == 0 {
			old = nil
		}
		for _, e := range old {
			key, ok := correlationKey(e, c.N.ListMapKeys)
			if _, taken := c.byKey[key]; ok && !taken {
				c.byKey[key] = e
			}
		}
	}
	if key, ok := correlationKey(v, c.N.ListMapKeys); ok {
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

// Equal reports whether the value equals its old value according to the schema. The order of the items of a list-type
// map is ignored. An object with unknown fields never equals another object.
func (c *Correlation) Equal() bool {
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

func (c *Correlation) compare() bool {
	switch value := c.Value.(type) {
	case []any:
		old, ok := c.Old.([]any)
		return ok && len(old) == len(value) && c.compareLists(value, old)
	case object.Tree:
		old, ok := c.Old.(object.Tree)
		if !ok || len(old) != len(value) {
			return false
		}
		for name := range value {
			if !c.Key(name).Equal() {
				return false
			}
		}
		return true
	}
	return object.Equal(c.Value, c.Old)
}

func (c *Correlation) compareLists(value, old []any) bool {
	if c.N == nil || c.N.ListType != "map" {
		return object.Equal(value, old)
	}
	for i := range value {
		if !c.Index(i).Equal() {
			return false
		}
	}
	return true
}
