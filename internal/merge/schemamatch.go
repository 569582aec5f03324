package merge

import (
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/object"
)

// matchesSchema reports whether an object matches a schema. It does not check the lists in AtomicLists, which
// always match. It costs far less than structured-merge-diff's validation. If it returns false, the object may
// still match, and structured-merge-diff must validate it.
func (w *write) matchesSchema(t object.Tree, p typed.ParseableType, options ...typed.ValidationOptions) bool {
	for _, dotted := range w.AtomicLists {
		t = replaceList(t, strings.Split(dotted, "."), 0)
	}
	s := schemaMatcher{p.Schema, len(options) > 0}
	return s.value(t, p.TypeRef)
}

// schemaMatcher checks whether values match a schema.
type schemaMatcher struct {
	*schema.Schema
	allowDuplicates bool // sets and lists of maps may contain repeated items
}

// untypedNames are the names of types that every value matches.
var untypedNames = map[string]bool{"__untyped_atomic_": true, "__untyped_deduced_": true}

func (s schemaMatcher) value(v any, ref schema.TypeRef) bool {
	if ref.NamedType != nil && untypedNames[*ref.NamedType] {
		return true
	}
	atom, ok := s.Resolve(ref)
	if !ok {
		return false
	}
	switch v := v.(type) {
	case nil:
		return atom != (schema.Atom{})
	case object.Tree:
		return atom.Map != nil && s.fields(v, atom.Map)
	case []any:
		return atom.List != nil && s.items(v, atom.List)
	}
	return atom.Scalar != nil && scalarMatches(v, *atom.Scalar)
}

func scalarMatches(v any, scalar schema.Scalar) bool {
	switch v.(type) {
	case string:
		return scalar == schema.String || scalar == schema.Untyped
	case int64, float64:
		return scalar == schema.Numeric || scalar == schema.Untyped
	case bool:
		return scalar == schema.Boolean || scalar == schema.Untyped
	}
	return false
}

func (s schemaMatcher) fields(t object.Tree, m *schema.Map) bool {
	for key, v := range t {
		ref := m.ElementType
		if field, ok := m.FindField(key); ok {
			ref = field.Type
		} else if ref == (schema.TypeRef{}) {
			return false
		}
		if !s.value(v, ref) {
			return false
		}
	}
	return true
}

func (s schemaMatcher) items(list []any, l *schema.List) bool {
	var seen map[string]bool
	if l.ElementRelationship == schema.Associative && len(list) > 1 && !s.allowDuplicates {
		seen = make(map[string]bool, len(list))
	}
	for _, v := range list {
		if l.ElementRelationship == schema.Associative {
			id, ok := itemKey(v, l.Keys)
			if !ok || seen[id] {
				return false
			}
			if seen != nil {
				seen[id] = true
			}
		}
		if !s.value(v, l.ElementType) {
			return false
		}
	}
	return true
}

// itemKey returns the key that identifies an item of a set, or of a list of maps with keys. ok is false if the item
// has no key, or if its key has missing fields that need default values.
func itemKey(v any, keys []string) (id string, ok bool) {
	if len(keys) == 0 {
		return scalarText(v)
	}
	t, _ := v.(object.Tree)
	for _, key := range keys {
		text, ok := scalarText(t[key])
		if !ok {
			return "", false
		}
		id += text + "\x00"
	}
	return id, true
}

func scalarText(v any) (string, bool) {
	switch v.(type) {
	case string, int64, bool:
		return string(object.AppendJSON(nil, v)), true
	}
	return "", false // a float64 may equal a number in another notation
}
