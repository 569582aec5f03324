package resource

import (
	"encoding"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TypeMismatch returns the path of the first field of t whose value the Go type cannot decode. Fields are in the
// order of their names. TypeMismatch returns nil if all values can be decoded.
func (g *GoType) TypeMismatch(t object.Tree) *field.Path {
	at, _ := findMismatch(reflect.TypeOf(g.New()).Elem(), t, nil)
	return at
}

// findMismatch reports whether typ cannot decode v. It returns the path of v, or of a field below v that cannot be
// decoded.
func findMismatch(typ reflect.Type, v any, at *field.Path) (*field.Path, bool) {
	if v == nil {
		return nil, false
	}
	if kjson.UnmarshalCaseSensitivePreserveInts(object.AppendJSON(nil, v), reflect.New(typ).Interface()) == nil {
		return nil, false
	}
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if decodesItself(typ) {
		return at, true
	}
	switch v := v.(type) {
	case object.Tree:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			elem, path := elementType(typ, key), at.Child(key)
			if typ.Kind() == reflect.Map {
				path = at.Key(key)
			}
			if elem == nil {
				continue
			}
			if found, ok := findMismatch(elem, v[key], path); ok {
				return found, true
			}
		}
	case []any:
		for i := 0; i < len(v) && typ.Kind() == reflect.Slice; i++ {
			if found, ok := findMismatch(typ.Elem(), v[i], at.Index(i)); ok {
				return found, true
			}
		}
	}
	return at, true
}

// elementType returns the type of a field of a struct, or of a value of a map. It returns nil if there is no such
// type.
func elementType(typ reflect.Type, name string) reflect.Type {
	switch typ.Kind() {
	case reflect.Struct:
		return fieldType(typ, name)
	case reflect.Map:
		return typ.Elem()
	}
	return nil
}

// decodesItself reports whether a type has its own method for decoding JSON. The fields of its JSON then have no Go
// types.
func decodesItself(typ reflect.Type) bool {
	pointer := reflect.PointerTo(typ)
	return pointer.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// fieldType returns the type of the field with a JSON name, or nil.
func fieldType(typ reflect.Type, name string) reflect.Type {
	for i := range typ.NumField() {
		f := typ.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case tag == name:
			return f.Type
		case tag == "" && (f.Anonymous || options == "inline") && f.Type.Kind() == reflect.Struct:
			if inner := fieldType(f.Type, name); inner != nil {
				return inner
			}
		}
	}
	return nil
}
