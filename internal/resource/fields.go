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

// The schema for field ownership is derived from the Go type in well under a millisecond.
// client-go carries the same for all kinds as YAML, which takes 150 ms and 21 MB to parse; it is what
// a test compares the kinds of the table with, and makes fields.txt of.

//go:embed fields.txt
var fieldsText string

// fact is what struct tags do not say of a type, or of a field of it: a line of fields.txt.
type fact struct {
	atomic bool     // it is owned as a whole
	list   bool     // it is a list with these keys, a set if there are none
	keys   []string // of the items of a list
	value  any      // what a field that is a key in a list is taken for where it is missing
}

// facts are those of fields.txt, by type ("io.k8s.api.core.v1.ObjectReference") or type and field.
var facts = sync.OnceValue(func() map[string]fact {
	all := map[string]fact{}
	for line := range strings.Lines(fieldsText) {
		words := strings.Fields(line)
		f := all[words[0]]
		switch words[1] {
		case "atomic":
			f.atomic = true
		case "list":
			f.list, f.keys = true, words[2:]
		case "default":
			_ = json.Unmarshal([]byte(words[2]), &f.value) // a test reads every line
		}
		all[words[0]] = f
	}
	return all
})

const (
	untypedAtomic  = "__untyped_atomic_"
	untypedDeduced = "__untyped_deduced_"
)

// Parseable derives what structured-merge-diff needs to know of the type.
func (g *GoType) Parseable() (typed.ParseableType, error) {
	obj := g.New()
	d := &deriver{facts: facts(), seen: map[reflect.Type]string{}}
	root, err := d.refer(reflect.TypeOf(obj).Elem())
	if err != nil {
		return typed.ParseableType{}, fmt.Errorf("resource: fields of %T: %w", obj, err)
	}
	atomic, deduced := anything(untypedAtomic, schema.Atomic), anything(untypedDeduced, schema.Separable)
	types := append(d.types, schema.TypeDef{Name: untypedAtomic, Atom: atomic}, schema.TypeDef{Name: untypedDeduced, Atom: deduced})
	return typed.ParseableType{TypeRef: root, Schema: &schema.Schema{Types: types}}, nil
}

// deriver collects the types that it met.
type deriver struct {
	facts map[string]fact
	seen  map[reflect.Type]string
	types []schema.TypeDef
}

// What a Go type may say of itself to kube-openapi.
type (
	modelNamer  interface{ OpenAPIModelName() string }
	schemaTyper interface {
		OpenAPISchemaType() []string
		OpenAPISchemaFormat() string
	}
	oneOfTyper interface{ OpenAPIV3OneOfTypes() []string }
)

// refer gives the reference to a Go type, defining it first where it is a struct.
func (d *deriver) refer(t reflect.Type) (schema.TypeRef, error) {
	switch t.Kind() {
	case reflect.Pointer:
		return d.refer(t.Elem())
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
		return d.list(t, schema.Atomic, nil)
	case reflect.Map:
		elem, err := d.refer(t.Elem())
		return schema.TypeRef{Inlined: schema.Atom{Map: &schema.Map{ElementType: elem}}}, err
	case reflect.Struct:
		return d.named(t)
	}
	return schema.TypeRef{}, fmt.Errorf("no schema for Go type %v", t)
}

func scalar(s schema.Scalar) schema.TypeRef { return schema.TypeRef{Inlined: schema.Atom{Scalar: &s}} }

func (d *deriver) list(t reflect.Type, relation schema.ElementRelationship, keys []string) (schema.TypeRef, error) {
	elem, err := d.refer(t.Elem())
	return schema.TypeRef{Inlined: schema.Atom{List: &schema.List{ElementType: elem, ElementRelationship: relation, Keys: keys}}}, err
}

// named defines a struct once. A struct may contain itself.
func (d *deriver) named(t reflect.Type) (schema.TypeRef, error) {
	name, ok := d.seen[t]
	if !ok {
		name = modelName(t)
		d.seen[t] = name
		atom, err := d.atom(t, name)
		if err != nil {
			return schema.TypeRef{}, err
		}
		d.types = append(d.types, schema.TypeDef{Name: name, Atom: atom})
	}
	return schema.TypeRef{NamedType: &name}, nil
}

func modelName(t reflect.Type) string {
	if n, ok := reflect.Zero(t).Interface().(modelNamer); ok {
		return n.OpenAPIModelName()
	}
	return t.PkgPath() + "." + t.Name()
}

// atom is the shape of a struct: what it says of itself, any JSON where it
// encodes itself, else its fields.
func (d *deriver) atom(t reflect.Type, name string) (schema.Atom, error) {
	zero := reflect.New(t).Interface()
	if _, ok := zero.(oneOfTyper); ok {
		return scalar(schema.Untyped).Inlined, nil
	}
	if s, ok := zero.(schemaTyper); ok {
		return openAPIAtom(s), nil
	}
	if _, ok := zero.(json.Marshaler); ok && d.facts[name].atomic {
		return anything(untypedAtomic, schema.Atomic), nil
	} else if ok {
		return schema.Atom{Map: &schema.Map{ElementType: schema.TypeRef{Inlined: anything(untypedDeduced, schema.Separable)}}}, nil
	}
	m := &schema.Map{}
	if d.facts[name].atomic {
		m.ElementRelationship = schema.Atomic
	}
	err := d.fields(m, t, name)
	if len(m.Fields) == 0 { // a marker; it may hold anything
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
		return anything(untypedDeduced, schema.Separable)
	case types[0] == "string" && (format == "" || format == "byte"):
		return scalar(schema.String).Inlined
	}
	return scalar(schema.Untyped).Inlined
}

// anything is a value of any shape whose maps hold the type called name.
func anything(name string, relation schema.ElementRelationship) schema.Atom {
	atomic, untyped := untypedAtomic, schema.Untyped
	return schema.Atom{
		Scalar: &untyped,
		List:   &schema.List{ElementType: schema.TypeRef{NamedType: &atomic}, ElementRelationship: schema.Atomic},
		Map:    &schema.Map{ElementType: schema.TypeRef{NamedType: &name}, ElementRelationship: relation},
	}
}

// fields adds the fields of t, those of embedded structs included, to m.
func (d *deriver) fields(m *schema.Map, t reflect.Type, name string) error {
	for f := range fieldsOf(t) {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" {
			continue
		}
		if tag == "" {
			if err := d.fields(m, f.Type, name); err != nil {
				return err
			}
			continue
		}
		ref, err := d.field(f, name+"."+tag)
		if err != nil {
			return err
		}
		value := d.facts[name+"."+tag].value
		if value == nil {
			value = defaultOf(f.Type, options)
		}
		m.Fields = append(m.Fields, schema.StructField{Name: tag, Type: ref, Default: value})
	}
	return nil
}

func fieldsOf(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && !yield(f) {
				return
			}
		}
	}
}

// field is the type of a field. Patch tags say how a list in it merges, unless a fact does.
func (d *deriver) field(f reflect.StructField, name string) (schema.TypeRef, error) {
	known := d.facts[name]
	switch {
	case f.Type.Kind() == reflect.Map && known.atomic:
		ref, err := d.refer(f.Type)
		ref.Inlined.Map.ElementRelationship = schema.Atomic
		return ref, err
	case f.Type.Kind() == reflect.Struct && known.atomic, f.Type.Kind() == reflect.Pointer && known.atomic:
		ref, err := d.refer(f.Type)
		atomic := schema.Atomic
		ref.ElementRelationship = &atomic
		return ref, err
	case f.Type.Kind() != reflect.Slice || f.Type.Elem().Kind() == reflect.Uint8:
		return d.refer(f.Type)
	case known.list:
		return d.list(f.Type, schema.Associative, known.keys)
	case known.atomic || !strings.Contains(f.Tag.Get("patchStrategy"), "merge"):
		return d.list(f.Type, schema.Atomic, nil)
	}
	var keys []string
	if key := f.Tag.Get("patchMergeKey"); key != "" {
		keys = []string{key}
	}
	return d.list(f.Type, schema.Associative, keys)
}

// defaultOf is what a required field is taken for where it is missing: it counts
// in the keys of a list.
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
