package validation

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Duplicates returns an error for each repeated item in a set and each repeated key in a list-type map
// (x-kubernetes-list-type). The error is reported at the second occurrence. If old is not nil, lists that have not
// changed since old are skipped.
func Duplicates(s *schema.Schema, t, old object.Tree) field.ErrorList {
	root := s.StructuralRoot()
	if !root.Has(schema.ListTypes) {
		return nil
	}
	l := listChecker{}
	l.tree(t, old, root, nil)
	return l.errs
}

type listChecker struct{ errs field.ErrorList }

// value checks v. old is the corresponding value in the old object, or nil if there is none.
func (l *listChecker) value(v, old any, n *schema.Node, at *schema.Position) {
	if !n.Has(schema.ListTypes) {
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
		switch n.ListType {
		case "set":
			l.set(v, at)
		case "map":
			l.mapList(v, n.ListMapKeys, at)
		}
		if !n.Items.Has(schema.ListTypes) {
			return
		}
		before := elementsByKey(old, n)
		for i, w := range v {
			l.value(w, before[elementKey(w, n)], n.Items, &schema.Position{Parent: at, Index: i, Kind: schema.AtIndex})
		}
	}
}

// elementsByKey returns the items of an old list-type map by their keys. It returns nil for other lists, because
// their items cannot be matched with new items.
func elementsByKey(old any, n *schema.Node) map[string]any {
	list, ok := old.([]any)
	if !ok || n.ListType != "map" {
		return nil
	}
	elements := make(map[string]any, len(list))
	for _, e := range list {
		elements[elementKey(e, n)] = e
	}
	return elements
}

func elementKey(e any, n *schema.Node) string {
	if n.ListType != "map" {
		return ""
	}
	t, _ := e.(object.Tree)
	key := make([]any, 0, 2*len(n.ListMapKeys))
	for _, name := range n.ListMapKeys {
		k, ok := t[name]
		key = append(key, ok, k)
	}
	return string(object.AppendJSON(nil, key))
}

// tree checks the fields of t. As upstream does, it also checks properties against additionalProperties.
func (l *listChecker) tree(t, old object.Tree, n *schema.Node, at *schema.Position) {
	if n.Additional != nil && n.Additional.Schema.Has(schema.ListTypes) {
		for _, k := range slices.Sorted(maps.Keys(t)) {
			l.value(t[k], old[k], n.Additional.Schema, &schema.Position{Parent: at, Key: k, Kind: schema.AtKey})
		}
	}
	for _, k := range slices.Sorted(maps.Keys(t)) {
		if child := n.Properties[k]; child.Has(schema.ListTypes) {
			l.value(t[k], old[k], child, &schema.Position{Parent: at, Key: k})
		}
	}
}

func (l *listChecker) set(v []any, at *schema.Position) {
	for _, i := range duplicateIndices(v) {
		l.errs = append(l.errs, field.Duplicate(at.Path().Index(i), v[i]))
	}
}

// mapList checks the keys of a list-type map. A missing key is compared like any other value.
func (l *listChecker) mapList(v []any, names []string, at *schema.Position) {
	for i, e := range v {
		if _, ok := e.(object.Tree); e != nil && !ok {
			l.errs = append(l.errs, field.Invalid(at.Path().Index(i), e,
				"must be an object for an array of list-type map"))
			return
		}
	}
	keys := make([]any, len(v))
	for i, e := range v {
		e, _ := e.(object.Tree)
		keys[i] = keyOf(e, names)
	}
	for _, i := range duplicateIndices(keys) {
		e, _ := v[i].(object.Tree)
		key := object.Tree{}
		for _, name := range names {
			if k, ok := e[name]; ok {
				key[name] = k
			}
		}
		l.errs = append(l.errs, field.Duplicate(at.Path().Index(i), key))
	}
}

// missing represents the value of a key field that an item does not have.
type missing struct{}

// keyOf returns a value that represents the key of an item. The values of two items are equal if and only if their
// keys are equal. If the key is a single field, the value is that of the field.
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

// maxPairwiseItems is the maximum length of a list whose items are compared in pairs, which allocates no memory.
const maxPairwiseItems = 12

// duplicateIndices returns the index of the second occurrence of each repeated value. 1 and 1.0 are different values.
// Objects and arrays are compared by their JSON, so within them 1 and 1.0 are equal.
func duplicateIndices(v []any) (indices []int) {
	if len(v) <= 1 {
		return nil
	}
	if len(v) <= maxPairwiseItems && !slices.ContainsFunc(v, isCompound) {
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

// compound is the JSON of an object or array. Its type makes it different from any string.
type compound string

func isCompound(v any) bool {
	switch v.(type) {
	case object.Tree, []any:
		return true
	}
	return false
}
