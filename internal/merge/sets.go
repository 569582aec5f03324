package merge

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/trellis-k8s/trellis/internal/object"
)

// self is the key that says that a field with fields below it is owned itself.
const self = "."

// setOf reads fieldsV1, which structured-merge-diff only reads as text.
// canonical is false where treeOf would write it otherwise. The set is not to be modified.
func setOf(v any) (set *fieldpath.Set, canonical bool, err error) {
	if v == nil {
		return fieldpath.NewSet(), false, nil
	}
	t, ok := v.(object.Tree)
	if !ok {
		return nil, false, fmt.Errorf("fieldsV1 must be an object, not %T", v)
	}
	r := setReader{canonical: true}
	set = &fieldpath.Set{}
	r.read(set, t)
	return set, r.canonical, r.err
}

type setReader struct {
	canonical bool
	err       error
}

// read makes set what t says.
func (r *setReader) read(set *fieldpath.Set, t object.Tree) {
	var buf [16]string
	keys := buf[:0]
	for key := range t {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if len(keys) > manyItems {
		sortItems(keys)
	}
	names := make([]string, len(keys)) // what the field names of the elements point to
	set.Members = fieldpath.MakePathElementSet(len(keys))
	for i, key := range keys {
		if key == self {
			below, ok := t[self].(object.Tree)
			r.canonical = r.canonical && ok && len(below) == 0
			continue
		}
		element, ok := r.element(key, &names[i])
		if !ok {
			continue
		}
		below, ok := t[key].(object.Tree)
		if !ok && t[key] != nil {
			r.fail(fmt.Errorf("%q must be an object, not %T", key, t[key]))
			return
		}
		r.member(set, element, below)
	}
}

// manyItems is a number of items that a set takes in any order at little cost.
const manyItems = 64

// sortItems brings the keys of list items into the order of a set, which takes an insertion out of order at a cost that grows with
// its size. Keys that are no path elements, of which the caller finds out again, go first.
func sortItems(keys []string) {
	if strings.HasPrefix(keys[0], "f:") && strings.HasPrefix(keys[len(keys)-1], "f:") {
		return // field names sort as text
	}
	type item struct {
		key     string
		element fieldpath.PathElement
	}
	items := make([]item, len(keys))
	for i, key := range keys {
		element, err := fieldpath.DeserializePathElement(key)
		if err != nil {
			element = fieldpath.PathElement{FieldName: new(string)}
		}
		items[i] = item{key, element}
	}
	slices.SortStableFunc(items, func(a, b item) int { return a.element.Compare(b.element) })
	for i := range items {
		keys[i] = items[i].key
	}
}

func (r *setReader) member(set *fieldpath.Set, element fieldpath.PathElement, below object.Tree) {
	_, member := below[self]
	if len(below) == 0 || member && len(below) == 1 {
		r.canonical = r.canonical && below != nil && !member
		set.Members.Insert(element)
		return
	}
	if member {
		set.Members.Insert(element)
	}
	child := fieldpath.Set{}
	r.read(&child, below)
	if child.Members.Size() == 0 && child.Children.Empty() {
		// Nothing in it was known: then it is as if nothing had been in it.
		r.canonical = false
		set.Members.Insert(element)
		return
	}
	*set.Children.Descend(element) = child
}

func (r *setReader) element(key string, name *string) (element fieldpath.PathElement, ok bool) {
	if strings.HasPrefix(key, "f:") {
		*name = key[2:]
		return fieldpath.PathElement{FieldName: name}, true
	}
	if element, ok := textKeys(key); ok {
		return element, true
	}
	element, err := fieldpath.DeserializePathElement(key)
	if errors.Is(err, fieldpath.ErrUnknownPathElementType) {
		r.canonical = false
		return element, false
	}
	if err != nil {
		r.fail(err)
		return element, false
	}
	r.canonical = r.canonical && keyOf(element) == key
	return element, true
}

// textKeys reads a list item's keys where they are in canonical form and plain
// texts, as they mostly are: k:{"name":"http"}.
func textKeys(key string) (element fieldpath.PathElement, ok bool) {
	rest, ok := strings.CutPrefix(key, `k:{"`)
	if !ok || strings.ContainsAny(rest, "\\<>&") {
		return element, false
	}
	var fields value.FieldList
	for {
		name, after, ok := strings.Cut(rest, `":"`)
		if !ok || !isPlain(name) || len(fields) > 0 && fields[len(fields)-1].Name >= name {
			return element, false
		}
		text, after, ok := strings.Cut(after, `"`)
		if !ok || !isPlain(text) {
			return element, false
		}
		fields = append(fields, value.Field{Name: name, Value: value.NewValueInterface(text)})
		if after == "}" {
			return fieldpath.PathElement{Key: &fields}, true
		}
		if rest, ok = strings.CutPrefix(after, `,"`); !ok {
			return element, false
		}
	}
}

func isPlain(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == '"' {
			return false
		}
	}
	return true
}

func (r *setReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// treeOf is the fieldsV1 of a set. All its leaves are one and the same.
func treeOf(set *fieldpath.Set) object.Tree { return branchOf(set, object.Tree{}) }

func branchOf(set *fieldpath.Set, leaf object.Tree) object.Tree {
	t := make(object.Tree, set.Members.Size())
	for element := range set.Members.All() {
		t[keyOf(element)] = leaf
	}
	for element := range set.Children.All() {
		below, _ := set.Children.Get(element)
		child := branchOf(below, leaf)
		key := keyOf(element)
		if _, member := t[key]; member && len(child) > 0 {
			child[self] = leaf
		}
		t[key] = child
	}
	return t
}

func keyOf(element fieldpath.PathElement) string {
	if element.FieldName != nil {
		return "f:" + *element.FieldName
	}
	key, err := fieldpath.SerializePathElement(element)
	if err != nil {
		panic("merge: a path element that is nothing: " + err.Error())
	}
	return key
}

// fits tells that no list or map of which set owns parts is atomic, as it must
// not be. Unlike typed.ReconcileFieldSetWithSchema it changes nothing and costs little;
// false says only that one has to ask that.
func fits(set *fieldpath.Set, s *schema.Schema, ref schema.TypeRef) bool {
	atom, ok := s.Resolve(ref)
	switch {
	case !ok:
		return false
	case atom.Map != nil:
		return mapFits(set, s, atom.Map)
	case atom.Scalar != nil || atom.List == nil:
		return true
	case atom.List.ElementRelationship == schema.Atomic:
		return false
	}
	return childrenFit(set, s, func(fieldpath.PathElement) schema.TypeRef { return atom.List.ElementType })
}

func mapFits(set *fieldpath.Set, s *schema.Schema, m *schema.Map) bool {
	if m.ElementRelationship == schema.Atomic {
		return false
	}
	return childrenFit(set, s, func(element fieldpath.PathElement) schema.TypeRef {
		if element.FieldName != nil {
			if field, ok := m.FindField(*element.FieldName); ok {
				return field.Type
			}
		}
		return m.ElementType
	})
}

// childrenFit never leaves the loop early, for the iterator does not allow that.
func childrenFit(set *fieldpath.Set, s *schema.Schema, refOf func(fieldpath.PathElement) schema.TypeRef) bool {
	ok := true
	for element := range set.Children.All() {
		ref := refOf(element)
		if !ok || ref == (schema.TypeRef{}) {
			continue // no such field
		}
		below, _ := set.Children.Get(element)
		ok = fits(below, s, ref)
	}
	return ok
}
