package resource

import (
	_ "embed" // fields.txt
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// The schema for managed fields is derived from the Go type, which takes well under a millisecond. client-go
// contains the same schemas for all kinds as YAML, which takes 150 ms and 21 MB to parse. A test compares the
// derived schemas with those of client-go, and prints the missing lines of fields.txt.

//go:embed fields.txt
var fieldsText string

// override is a line of fields.txt. It contains schema properties of a type, or of a field of a type, that its
// struct tags lack.
type override struct {
	atomic bool     // the type or field is atomic
	list   bool     // the field is an associative list
	keys   []string // keys of the list's items, empty for a set
	value  any      // default value of a field that is a key of a list
}

// overrides returns the lines of fields.txt by type ("io.k8s.api.core.v1.ObjectReference"), or by type and field.
var overrides = sync.OnceValue(func() map[string]override {
	all := map[string]override{}
	for line := range strings.Lines(fieldsText) {
		words := strings.Fields(line)
		f := all[words[0]]
		switch words[1] {
		case "atomic":
			f.atomic = true
		case "list":
			f.list, f.keys = true, words[2:]
		case "default":
			_ = json.Unmarshal([]byte(words[2]), &f.value) // a test parses every line
		}
		all[words[0]] = f
	}
	return all
})

const (
	untypedAtomic  = "__untyped_atomic_"
	untypedDeduced = "__untyped_deduced_"
)

// Parseable returns the schema that structured-merge-diff needs, derived from the Go type.
func (g *GoType) Parseable() (typed.ParseableType, error) {
	obj := g.New()
	b := &schemaBuilder{overrides: overrides(), seen: map[reflect.Type]string{}}
	root, err := b.typeRef(reflect.TypeOf(obj).Elem())
	if err != nil {
		return typed.ParseableType{}, fmt.Errorf("resource: derive schema of %T: %w", obj, err)
	}
	atomic, deduced := anyAtom(untypedAtomic, schema.Atomic), anyAtom(untypedDeduced, schema.Separable)
	types := append(b.types,
		schema.TypeDef{Name: untypedAtomic, Atom: atomic},
		schema.TypeDef{Name: untypedDeduced, Atom: deduced})
	return typed.ParseableType{TypeRef: root, Schema: &schema.Schema{Types: types}}, nil
}

// schemaBuilder builds a schema and collects the types that it refers to.
type schemaBuilder struct {
	overrides map[string]override
	seen      map[reflect.Type]string
	types     []schema.TypeDef
}

// Interfaces of Go types that define their own OpenAPI type for kube-openapi.
type (
	modelNamer  interface{ OpenAPIModelName() string }
	schemaTyper interface {
		OpenAPISchemaType() []string
		OpenAPISchemaFormat() string
	}
	oneOfTyper interface{ OpenAPIV3OneOfTypes() []string }
)

// typeRef returns a reference to a Go type. It defines a struct type first.
func (b *schemaBuilder) typeRef(t reflect.Type) (schema.TypeRef, error) {
	switch t.Kind() {
	case reflect.Pointer:
		return b.typeRef(t.Elem())
	case reflect.String:
		return scalar(schema.String), nil
	case reflect.Bool:
		return scalar(schema.Boolean), nil
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Float32, reflect.Float64:
		return scalar(schema.Numeric), nil
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return scalar(schema.String), nil // base64
		}
		return b.list(t, schema.Atomic, nil)
	case reflect.Map:
		elem, err := b.typeRef(t.Elem())
		return schema.TypeRef{Inlined: schema.Atom{Map: &schema.Map{ElementType: elem}}}, err
	case reflect.Struct:
		return b.structRef(t)
	}
	return schema.TypeRef{}, fmt.Errorf("no schema for Go type %v", t)
}

func scalar(s schema.Scalar) schema.TypeRef { return schema.TypeRef{Inlined: schema.Atom{Scalar: &s}} }

func (b *schemaBuilder) list(
	t reflect.Type, relation schema.ElementRelationship, keys []string,
) (schema.TypeRef, error) {
	elem, err := b.typeRef(t.Elem())
	list := &schema.List{ElementType: elem, ElementRelationship: relation, Keys: keys}
	return schema.TypeRef{Inlined: schema.Atom{List: list}}, err
}

// structRef returns a reference to a struct and defines the struct once. A struct may contain itself.
func (b *schemaBuilder) structRef(t reflect.Type) (schema.TypeRef, error) {
	name, ok := b.seen[t]
	if !ok {
		name = modelName(t)
		b.seen[t] = name
		atom, err := b.atom(t, name)
		if err != nil {
			return schema.TypeRef{}, err
		}
		b.types = append(b.types, schema.TypeDef{Name: name, Atom: atom})
	}
	return schema.TypeRef{NamedType: &name}, nil
}

func modelName(t reflect.Type) string {
	if n, ok := reflect.Zero(t).Interface().(modelNamer); ok {
		return n.OpenAPIModelName()
	}
	return t.PkgPath() + "." + t.Name()
}

// atom returns the schema of a struct. It is the struct's own OpenAPI type if any, arbitrary JSON if the struct has
// its own encoder, and otherwise a map of the struct's fields.
func (b *schemaBuilder) atom(t reflect.Type, name string) (schema.Atom, error) {
	zero := reflect.New(t).Interface()
	if _, ok := zero.(oneOfTyper); ok {
		return scalar(schema.Untyped).Inlined, nil
	}
	if s, ok := zero.(schemaTyper); ok {
		return openAPIAtom(s), nil
	}
	if _, ok := zero.(json.Marshaler); ok && b.overrides[name].atomic {
		return anyAtom(untypedAtomic, schema.Atomic), nil
	} else if ok {
		elem := schema.TypeRef{Inlined: anyAtom(untypedDeduced, schema.Separable)}
		return schema.Atom{Map: &schema.Map{ElementType: elem}}, nil
	}
	m := &schema.Map{}
	if b.overrides[name].atomic {
		m.ElementRelationship = schema.Atomic
	}
	err := b.fields(m, t, name)
	if len(m.Fields) == 0 { // a struct without fields may hold any value
		deduced := untypedDeduced
		m.ElementType = schema.TypeRef{NamedType: &deduced}
	}
	slices.SortFunc(m.Fields, func(a, b schema.StructField) int { return strings.Compare(a.Name, b.Name) })
	return schema.Atom{Map: m}, err
}

func openAPIAtom(s schemaTyper) schema.Atom {
	types, format := s.OpenAPISchemaType(), s.OpenAPISchemaFormat()
	switch {
	case len(types) == 0:
		return anyAtom(untypedDeduced, schema.Separable)
	case types[0] == "string" && (format == "" || format == "byte"):
		return scalar(schema.String).Inlined
	}
	return scalar(schema.Untyped).Inlined
}

// anyAtom returns the schema of any value. The members of a map have the type called name.
func anyAtom(name string, relation schema.ElementRelationship) schema.Atom {
	atomic, untyped := untypedAtomic, schema.Untyped
	return schema.Atom{
		Scalar: &untyped,
		List:   &schema.List{ElementType: schema.TypeRef{NamedType: &atomic}, ElementRelationship: schema.Atomic},
		Map:    &schema.Map{ElementType: schema.TypeRef{NamedType: &name}, ElementRelationship: relation},
	}
}

// fields adds the fields of t to m, including those of embedded structs.
func (b *schemaBuilder) fields(m *schema.Map, t reflect.Type, name string) error {
	for f := range exportedFields(t) {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" {
			continue
		}
		if tag == "" {
			if err := b.fields(m, f.Type, name); err != nil {
				return err
			}
			continue
		}
		ref, err := b.field(f, name+"."+tag)
		if err != nil {
			return err
		}
		value := b.overrides[name+"."+tag].value
		if value == nil {
			value = defaultOf(f.Type, options)
		}
		m.Fields = append(m.Fields, schema.StructField{Name: tag, Type: ref, Default: value})
	}
	return nil
}

func exportedFields(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && !yield(f) {
				return
			}
		}
	}
}

// field returns the type of a field. Patch tags define how a list is merged, unless an override does.
func (b *schemaBuilder) field(f reflect.StructField, name string) (schema.TypeRef, error) {
	o := b.overrides[name]
	switch {
	case f.Type.Kind() == reflect.Map && o.atomic:
		ref, err := b.typeRef(f.Type)
		ref.Inlined.Map.ElementRelationship = schema.Atomic
		return ref, err
	case f.Type.Kind() == reflect.Struct && o.atomic, f.Type.Kind() == reflect.Pointer && o.atomic:
		ref, err := b.typeRef(f.Type)
		atomic := schema.Atomic
		ref.ElementRelationship = &atomic
		return ref, err
	case f.Type.Kind() != reflect.Slice || f.Type.Elem().Kind() == reflect.Uint8:
		return b.typeRef(f.Type)
	case o.list:
		return b.list(f.Type, schema.Associative, o.keys)
	case o.atomic || !strings.Contains(f.Tag.Get("patchStrategy"), "merge"):
		return b.list(f.Type, schema.Atomic, nil)
	}
	var keys []string
	if key := f.Tag.Get("patchMergeKey"); key != "" {
		keys = []string{key}
	}
	return b.list(f.Type, schema.Associative, keys)
}

// defaultOf returns the default value of a missing required field. If the field is part of a list key, the key
// contains this value.
func defaultOf(t reflect.Type, options string) any {
	if strings.Contains(options, "omitempty") {
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		return ""
	case reflect.Bool:
		return false
	case reflect.Int32, reflect.Int64:
		return int64(0)
	}
	return nil
}
