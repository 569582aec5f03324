package schema

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// duplicates finds the items that x-kubernetes-list-type forbids: in a set, those that are there before;
// in a map, those whose keys are. Each is reported once, where it appears for the second time. Lists that are the same in
// the old object, if there is one, are left out.
func (s *Schema) duplicates(t, old object.Tree) field.ErrorList {
	root := s.shaping()
	if !root.has(listTypes) {
		return nil
	}
	l := listChecker{}
	l.tree(t, old, root, nil)
	return l.errs
}

type listChecker struct{ errs field.ErrorList }

// value checks a value. old is the value in its place in the old object, nil if there is none.
func (l *listChecker) value(v, old any, n *node, at *place) {
	if !n.has(listTypes) {
		return
	}
	switch v := v.(type) {
	case object.Tree:
		old, _ := old.(object.Tree)
		l.tree(v, old, n, at)
	case []any:
		if old, ok := old.([]any); ok && object.Equal(v, old) {
			return
		}
		switch n.listType {
		case "set":
			l.set(v, at)
		case "map":
			l.keyed(v, n.listKeys, at)
		}
		if !n.items.has(listTypes) {
			return
		}
		before := elementsByKey(old, n)
		for i, w := range v {
			l.value(w, before[elementKey(w, n)], n.items, &place{up: at, index: i, kind: atIndex})
		}
	}
}

// elementsByKey returns the elements of an old list of type map by their keys. Those of other lists have no place.
func elementsByKey(old any, n *node) map[string]any {
	list, ok := old.([]any)
	if !ok || n.listType != "map" {
		return nil
	}
	elements := make(map[string]any, len(list))
	for _, e := range list {
		elements[elementKey(e, n)] = e
	}
	return elements
}

func elementKey(e any, n *node) string {
	if n.listType != "map" {
		return ""
	}
	t, _ := e.(object.Tree)
	key := make([]any, 0, 2*len(n.listKeys))
	for _, name := range n.listKeys {
		k, ok := t[name]
		key = append(key, ok, k)
	}
	return string(object.AppendJSON(nil, key))
}

// tree goes on below an object. As upstream, it looks at a property by additionalProperties, too.
func (l *listChecker) tree(t, old object.Tree, n *node, at *place) {
	if n.additional != nil && n.additional.schema.has(listTypes) {
		for _, k := range sortedKeys(t) {
			l.value(t[k], old[k], n.additional.schema, &place{up: at, key: k, kind: atKey})
		}
	}
	for _, k := range sortedKeys(t) {
		if child := n.properties[k]; child.has(listTypes) {
			l.value(t[k], old[k], child, &place{up: at, key: k})
		}
	}
}

// sortedKeys puts the errors of an object in an order.
func sortedKeys(t object.Tree) []string { return slices.Sorted(maps.Keys(t)) }

func (l *listChecker) set(v []any, at *place) {
	for _, i := range repeated(v) {
		l.errs = append(l.errs, field.Duplicate(at.path().Index(i), v[i]))
	}
}

// keyed checks the keys of a list-type map. A key that an item does not have is like any other value.
func (l *listChecker) keyed(v []any, names []string, at *place) {
	for i, e := range v {
		if _, ok := e.(object.Tree); e != nil && !ok {
			l.errs = append(l.errs, field.Invalid(at.path().Index(i), e, "must be an object for an array of list-type map"))
			return
		}
	}
	keys := make([]any, len(v))
	for i, e := range v {
		e, _ := e.(object.Tree)
		keys[i] = keyOf(e, names)
	}
	for _, i := range repeated(keys) {
		e, _ := v[i].(object.Tree)
		key := object.Tree{}
		for _, name := range names {
			if k, ok := e[name]; ok {
				key[name] = k
			}
		}
		l.errs = append(l.errs, field.Duplicate(at.path().Index(i), key))
	}
}

// missing stands for a key that an item does not have.
type missing struct{}

// keyOf is what two items with the same keys have in common, and no others: of a single key the value itself.
func keyOf(e object.Tree, names []string) any {
	if len(names) == 1 {
		if k, ok := e[names[0]]; ok {
			return k
		}
		return missing{}
	}
	key := make([]any, 0, 2*len(names))
	for _, name := range names {
		k, ok := e[name]
		key = append(key, ok, k)
	}
	return key
}

// fewItems are compared with one another, which takes no memory.
const fewItems = 12

// repeated lists the indices of the second appearances of values. 1 and 1.0 are two values, but not within a
// compound one, which is compared by its JSON.
func repeated(v []any) (indices []int) {
	if len(v) <= 1 {
		return nil
	}
	if len(v) <= fewItems && !slices.ContainsFunc(v, isCompound) {
		for i, e := range v {
			before := 0
			for _, f := range v[:i] {
				if e == f {
					before++
				}
			}
			if before == 1 {
				indices = append(indices, i)
			}
		}
		return indices
	}
	seen := make(map[any]int, len(v))
	for i, e := range v {
		if isCompound(e) {
			e = compound(object.AppendJSON(nil, e))
		}
		if seen[e]++; seen[e] == 2 {
			indices = append(indices, i)
		}
	}
	return indices
}

// compound is the JSON of an object or an array: never equal to a string.
type compound string

func isCompound(v any) bool {
	switch v.(type) {
	case object.Tree, []any:
		return true
	}
	return false
}
