package openapi

import (
	_ "embed" // required.txt
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
)

//go:embed required.txt
var requiredText string

// required says of fields ("io.k8s.api.core.v1.Event.metadata") whether they must be there, where their tags say otherwise. A
// test compares it with the markers in k8s.io/api.
var required = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(requiredText) {
		field, is, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[field] = is == "required"
	}
	return all
})

// typed is a type that says which of OpenAPI's types it is.
type typed interface {
	OpenAPISchemaType() []string
	OpenAPISchemaFormat() string
}

// oneOf is a type that is one of several.
type oneOf interface{ OpenAPIV3OneOfTypes() []string }

// describe is the schema of the struct t.
func (m *models) describe(t reflect.Type, name string) *spec.Schema {
	docs := map[string]string{}
	zero := reflect.Zero(t).Interface()
	if d, ok := zero.(documented); ok {
		docs = d.SwaggerDoc()
	}
	s := &spec.Schema{SchemaProps: spec.SchemaProps{Description: docs[""]}}
	if own, ok := zero.(typed); ok {
		s.Format = own.OpenAPISchemaFormat()
		if one, ok := zero.(oneOf); ok && m.edition == v3 {
			s.OneOf = common.GenerateOpenAPIV3OneOfSchema(one.OpenAPIV3OneOfTypes())
		} else {
			s.Type = own.OpenAPISchemaType()
		}
		return s
	}
	s.Type = []string{"object"}
	var merge *smd.Map
	if m.lists != nil {
		if def, ok := m.lists.FindNamedType(name); ok {
			merge = def.Map
		}
	}
	if merge != nil && merge.ElementRelationship == smd.Atomic {
		s.AddExtension("x-kubernetes-map-type", "atomic")
	}
	m.fields(s, t, name, docs, merge)
	return s
}

// fields adds those of the struct t to s.
func (m *models) fields(s *spec.Schema, t reflect.Type, name string, docs map[string]string, merge *smd.Map) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" || !f.IsExported() {
			continue
		}
		if tag == "" {
			if f.Anonymous || strings.Contains(rest, "inline") {
				m.embed(s, f.Type, name, docs, merge)
			}
			continue
		}
		omitempty := slices.Contains(strings.Split(rest, ","), "omitempty")
		p := m.value(f.Type)
		p.Description = docs[tag]
		p.Default = defaultOf(f.Type, omitempty)
		mergeKeys(p, f.Tag)
		if merge != nil {
			if field, ok := merge.FindField(tag); ok {
				listType(p, field.Type, f.Type)
			}
		}
		s.SetProperty(tag, *p)
		must, known := required()[name+"."+tag]
		if must || !known && !omitempty {
			s.Required = append(s.Required, tag)
		}
	}
}

// embed adds the fields of an embedded struct, which has comments of its own.
func (m *models) embed(s *spec.Schema, t reflect.Type, name string, docs map[string]string, merge *smd.Map) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	if d, ok := reflect.Zero(t).Interface().(documented); ok {
		docs = d.SwaggerDoc()
	}
	m.fields(s, t, name, docs, merge)
}

// mergeKeys says how strategic merge patches treat a field.
func mergeKeys(p *spec.Schema, tag reflect.StructTag) {
	if v := tag.Get("patchStrategy"); v != "" {
		p.AddExtension("x-kubernetes-patch-strategy", v)
	}
	if v := tag.Get("patchMergeKey"); v != "" {
		p.AddExtension("x-kubernetes-patch-merge-key", v)
	}
}

// listType says how server-side apply treats a field.
func listType(p *spec.Schema, ref smd.TypeRef, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch list := ref.Inlined.List; {
	case list != nil && list.ElementRelationship == smd.Atomic:
		p.AddExtension("x-kubernetes-list-type", "atomic")
	case list != nil && len(list.Keys) > 0:
		keys := make([]any, len(list.Keys))
		for i, k := range list.Keys {
			keys[i] = k
		}
		p.AddExtension("x-kubernetes-list-type", "map")
		p.AddExtension("x-kubernetes-list-map-keys", keys)
	case list != nil:
		p.AddExtension("x-kubernetes-list-type", "set")
	case ref.Inlined.Map != nil && ref.Inlined.Map.ElementRelationship == smd.Atomic && t.Kind() == reflect.Map:
		p.AddExtension("x-kubernetes-map-type", "atomic")
	}
}

// value is the schema of a value of type t, without its comment.
func (m *models) value(t reflect.Type) *spec.Schema {
	if name := m.add(t, nil); name != "" {
		return spec.RefSchema(m.refPrefix() + name)
	}
	simple := func(typ, format string) *spec.Schema { return new(spec.Schema).Typed(typ, format) }
	switch t.Kind() {
	case reflect.Pointer:
		return m.value(t.Elem())
	case reflect.Bool:
		return simple("boolean", "")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return simple("integer", "int32")
	case reflect.Int64, reflect.Uint64, reflect.Uint:
		return simple("integer", "int64")
	case reflect.Float32:
		return simple("number", "float")
	case reflect.Float64:
		return simple("number", "double")
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return simple("string", "byte")
		}
		return &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"array"},
			Items: &spec.SchemaOrArray{Schema: m.value(t.Elem())}}}
	case reflect.Map:
		return &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"},
			AdditionalProperties: &spec.SchemaOrBool{Allows: true, Schema: m.value(t.Elem())}}}
	case reflect.String:
		return simple("string", "")
	default:
		return simple("object", "")
	}
}

// defaultOf is what a value of type t is where the client leaves it out, or nil.
func defaultOf(t reflect.Type, omitempty bool) any {
	if t.Implements(reflect.TypeFor[json.Unmarshaler]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		if t.NumField() == 1 && t.Field(0).Anonymous {
			return defaultOf(t.Field(0).Type, omitempty)
		}
		return map[string]any{}
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Array, reflect.Interface:
		return nil
	default:
		if omitempty {
			return nil
		}
		return reflect.Zero(t).Interface()
	}
}
