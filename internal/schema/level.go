package schema

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// level is a place with its value and what that was before. Ratcheting costs only where there is an error
// to report.
type level struct {
	place
	outer      *level // that of place.up
	node       *node
	value, old any
	correlated bool // old is the old value of value, though it may be null
}

// below is the level of a value one step down.
func (l *level) below(step place, value any) level {
	if l.outer != nil {
		step.up = &l.place
	}
	return level{place: step, outer: l, value: value}
}

func (l *level) path() *field.Path {
	if l.outer == nil {
		return nil
	}
	return l.place.path()
}

// unchanged reports whether errors at l are to be ratcheted: l is as it was, or, where it cannot be
// compared, the nearest value around it that can be (KEP-4008).
func (l *level) unchanged() bool {
	nearest := l.nearest()
	return nearest != nil && equalCorrelated(nearest.node, nearest.value, nearest.old)
}

// nearest is the innermost level from l outwards that can be compared with its old value; nil if there
// is none. Versions differ in apiVersion and kind, so that those of the root never can.
func (l *level) nearest() *level {
	switch {
	case l.outer == nil && l.correlated:
		return l
	case l.outer == nil:
		return nil
	}
	n := l.outer.nearest()
	switch {
	case n != l.outer: // lost further out
		return n
	case l.outer.outer == nil && l.kind != atIndex && (l.key == "apiVersion" || l.key == "kind"):
		return nil
	case l.correlated:
		return l
	}
	return n
}

// equalCorrelated compares a value with its old one: lists with x-kubernetes-list-type=map without regard to
// order. Objects with fields that the schema does not name count as different, as they do
// upstream.
func equalCorrelated(n *node, v, old any) bool {
	switch v := v.(type) {
	case []any:
		was, ok := old.([]any)
		return ok && len(v) == len(was) && equalLists(n, v, was)
	case object.Tree:
		was, ok := old.(object.Tree)
		if !ok || len(v) != len(was) {
			return false
		}
		for k := range v {
			child := n.childOf(k)
			before, ok := was[k]
			if child == nil || !ok || !equalCorrelated(child, v[k], before) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(v, old)
}

func equalLists(n *node, v, old []any) bool {
	if n.listType != "map" {
		return reflect.DeepEqual(v, old)
	}
	index := newListIndex(n, old)
	for i := range v {
		before := index.find(v[i])
		if before == nil || n.items == nil || !equalCorrelated(n.items, v[i], before) {
			return false
		}
	}
	return true
}

// childOf is the schema of a field; nil where there is none.
func (n *node) childOf(key string) *node {
	if child, ok := n.properties[key]; ok {
		return child
	}
	if n.additional != nil {
		return n.additional.schema
	}
	return nil
}

// listIndex finds the items of a list with x-kubernetes-list-type=map by their keys. Of any other
// list it finds nothing.
type listIndex struct {
	keys  []string
	left  []any // not looked at yet
	found map[any]any
}

func newListIndex(n *node, items []any) *listIndex {
	if n.typ != "array" || n.listType != "map" || len(n.listKeys) == 0 || len(items) == 0 {
		return nil
	}
	return &listIndex{keys: n.listKeys, left: items}
}

// find is the first item with the keys of like; nil if there is none.
func (x *listIndex) find(like any) any {
	if x == nil {
		return nil
	}
	key, ok := x.key(like)
	if !ok {
		return nil
	}
	if item, ok := x.found[key]; ok {
		return item
	}
	for len(x.left) > 0 {
		item := x.left[0]
		x.left = x.left[1:]
		k, ok := x.key(item)
		if !ok {
			continue
		}
		if x.found == nil {
			x.found = map[any]any{}
		}
		if _, ok := x.found[k]; !ok {
			x.found[k] = item
		}
		if k == key {
			return item
		}
	}
	return nil
}

// key is what an item is known by; false if it lacks a key.
func (x *listIndex) key(item any) (any, bool) {
	t, ok := item.(object.Tree)
	if !ok {
		return nil, false
	}
	var text []byte
	for _, k := range x.keys {
		switch v := t[k].(type) {
		case bool, int64, float64, string:
			if len(x.keys) == 1 {
				return v, true
			}
			text = appendKey(text, v)
		default:
			return nil, false
		}
	}
	return string(text), true
}

func appendKey(dst []byte, v any) []byte {
	format := "\x00%d"
	switch v.(type) {
	case bool:
		format = "\x00%t"
	case float64:
		format = "\x00%f"
	case string:
		format = "\x00%q"
	}
	return fmt.Appendf(dst, format, v)
}
