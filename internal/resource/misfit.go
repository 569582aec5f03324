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

// TypeMismatch returns the path of the first field of t whose value the Go type cannot decode, with fields in the order of their names; nil if
// all can be decoded.
func (g *GoType) TypeMismatch(t object.Tree) *field.Path {
	at, _ := misfit(reflect.TypeOf(g.New()).Elem(), t, nil)
	return at
}

// misfit reports whether typ cannot decode v, which is at a path, and returns that path or the path of a field below.
func misfit(typ reflect.Type, v any, at *field.Path) (*field.Path, bool) {
	if v == nil || kjson.UnmarshalCaseSensitivePreserveInts(object.AppendJSON(nil, v), reflect.New(typ).Interface()) == nil {
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
			of, path := elementType(typ, key), at.Child(key)
			if typ.Kind() == reflect.Map {
				path = at.Key(key)
			}
			if of == nil {
				continue
			}
			if found, ok := misfit(of, v[key], path); ok {
				return found, true
			}
		}
	case []any:
		for i := 0; i < len(v) && typ.Kind() == reflect.Slice; i++ {
			if found, ok := misfit(typ.Elem(), v[i], at.Index(i)); ok {
				return found, true
			}
		}
	}
	return at, true
}

// elementType returns the type of a field of a struct, or of an entry of a map; nil if there is none.
func elementType(typ reflect.Type, name string) reflect.Type {
	switch typ.Kind() {
	case reflect.Struct:
		return fieldType(typ, name)
	case reflect.Map:
		return typ.Elem()
	}
	return nil
}

// decodesItself reports whether a type has a method to decode JSON, so that its fields have no Go types.
func decodesItself(typ reflect.Type) bool {
	pointer := reflect.PointerTo(typ)
	return pointer.Implements(reflect.TypeFor[json.Unmarshaler]()) || pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// fieldType returns the type of a field by its name in JSON, nil if there is none.
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
