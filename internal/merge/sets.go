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

// selfKey is the key that marks a field as owned in addition to fields below it.
const selfKey = "."

// decodeSet decodes fieldsV1 from a tree. structured-merge-diff can decode only text. canonical reports whether
// encodeSet returns the same tree. The set must not be modified.
func decodeSet(v any) (set *fieldpath.Set, canonical bool, err error) {
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

// read stores the fields of t in set.
func (r *setReader) read(set *fieldpath.Set, t object.Tree) {
	var buf [16]string
	keys := buf[:0]
	for key := range t {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if len(keys) > sortThreshold {
		sortItems(keys)
	}
	names := make([]string, len(keys)) // the field names in path elements are pointers into names
	set.Members = fieldpath.MakePathElementSet(len(keys))
	for i, key := range keys {
		if key == selfKey {
			below, ok := t[selfKey].(object.Tree)
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
		r.insert(set, element, below)
	}
}

// sortThreshold is the maximum number of items that are inserted in any order. For so few items the insertions are
// cheap.
const sortThreshold = 64

// sortItems sorts the keys of list items into the order of a set. The cost of an insertion out of order grows with
// the size of the set. Keys that are not valid path elements are sorted to the front. The caller returns the errors
// for them.
func sortItems(keys []string) {
	if strings.HasPrefix(keys[0], "f:") && strings.HasPrefix(keys[len(keys)-1], "f:") {
		return // field names are already sorted
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

func (r *setReader) insert(set *fieldpath.Set, element fieldpath.PathElement, below object.Tree) {
	_, member := below[selfKey]
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
		// All keys below are of unknown types, so the element is treated as an element that has no keys below.
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
	if element, ok := parseStringKeys(key); ok {
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
	r.canonical = r.canonical && elementKey(element) == key
	return element, true
}

// parseStringKeys parses the keys of a list item in the most common form: canonical JSON with plain string values,
// such as k:{"name":"http"}. ok is false for any other form.
func parseStringKeys(key string) (element fieldpath.PathElement, ok bool) {
	rest, ok := strings.CutPrefix(key, `k:{"`)
	if !ok || strings.ContainsAny(rest, "\\<>&") {
		return element, false
	}
	var fields value.FieldList
	for {
		name, after, ok := strings.Cut(rest, `":"`)
		if !ok || !isPlainASCII(name) || len(fields) > 0 && fields[len(fields)-1].Name >= name {
			return element, false
		}
		text, after, ok := strings.Cut(after, `"`)
		if !ok || !isPlainASCII(text) {
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

func isPlainASCII(s string) bool {
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

// encodeSet returns the fieldsV1 of a set. All leaves of the tree are the same object.
func encodeSet(set *fieldpath.Set) object.Tree { return encodeBranch(set, object.Tree{}) }

func encodeBranch(set *fieldpath.Set, leaf object.Tree) object.Tree {
	t := make(object.Tree, set.Members.Size())
	for element := range set.Members.All() {
		t[elementKey(element)] = leaf
	}
	for element := range set.Children.All() {
		below, _ := set.Children.Get(element)
		child := encodeBranch(below, leaf)
		key := elementKey(element)
		if _, member := t[key]; member && len(child) > 0 {
			child[selfKey] = leaf
		}
		t[key] = child
	}
	return t
}

func elementKey(element fieldpath.PathElement) string {
	if element.FieldName != nil {
		return "f:" + *element.FieldName
	}
	key, err := fieldpath.SerializePathElement(element)
	if err != nil {
		panic("merge: empty path element: " + err.Error())
	}
	return key
}

// isReconciled reports whether set is valid for the schema. A valid set owns no parts of atomic lists and maps.
// isReconciled changes nothing and costs little. If it returns false, the set may still be valid, and the caller
// must call typed.ReconcileFieldSetWithSchema.
func isReconciled(set *fieldpath.Set, s *schema.Schema, ref schema.TypeRef) bool {
	atom, ok := s.Resolve(ref)
	switch {
	case !ok:
		return false
	case atom.Map != nil:
		return mapReconciled(set, s, atom.Map)
	case atom.Scalar != nil || atom.List == nil:
		return true
	case atom.List.ElementRelationship == schema.Atomic:
		return false
	}
	return childrenReconciled(set, s, func(fieldpath.PathElement) schema.TypeRef { return atom.List.ElementType })
}

func mapReconciled(set *fieldpath.Set, s *schema.Schema, m *schema.Map) bool {
	if m.ElementRelationship == schema.Atomic {
		return false
	}
	return childrenReconciled(set, s, func(element fieldpath.PathElement) schema.TypeRef {
		if element.FieldName != nil {
			if field, ok := m.FindField(*element.FieldName); ok {
				return field.Type
			}
		}
		return m.ElementType
	})
}

// childrenReconciled reports whether all children of set are reconciled. Its loop has no early exit because the
// iterator does not support one.
func childrenReconciled(set *fieldpath.Set, s *schema.Schema, refOf func(fieldpath.PathElement) schema.TypeRef) bool {
	ok := true
	for element := range set.Children.All() {
		ref := refOf(element)
		if !ok || ref == (schema.TypeRef{}) {
			continue // unknown field
		}
		below, _ := set.Children.Get(element)
		ok = isReconciled(below, s, ref)
	}
	return ok
}
