package builtin

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// The schema for field ownership is derived from the Go type in well under a millisecond.
// client-go carries the same for all kinds as YAML, which takes 150 ms and 21 MB to parse; it is what
// a test compares the kinds of the table with.

// What struct tags do not say.
var (
	// atomicStructs are owned as a whole.
	atomicStructs = []string{
		"io.k8s.api.core.v1.EndpointAddress",
		"io.k8s.api.core.v1.EndpointPort",
		"io.k8s.api.core.v1.LocalObjectReference",
		"io.k8s.api.core.v1.ObjectReference",
		"io.k8s.api.discovery.v1.EndpointPort",
		"io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
	}
	// atomicMaps are maps that are owned as a whole, by type and field.
	atomicMaps = []string{"io.k8s.api.core.v1.ServiceSpec.selector"}
	// fieldDefaults are what fields that keys of lists are made of are taken for where they are missing.
	fieldDefaults = map[string]any{"io.k8s.api.core.v1.ServicePort.protocol": string(corev1.ProtocolTCP)}
	// listKeys are the keys of lists that patchMergeKey does not tell, by type and field; sets have none.
	listKeys = map[string][]string{
		"io.k8s.api.core.v1.ServiceSpec.ports":                                                                    {"port", "protocol"},
		"io.k8s.api.discovery.v1.Endpoint.addresses":                                                              {},
		"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus.conditions":      {"type"},
		"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1beta1.CustomResourceDefinitionStatus.conditions": {"type"},
	}
)

const (
	untypedAtomic  = "__untyped_atomic_"
	untypedDeduced = "__untyped_deduced_"
)

// parseable derives what structured-merge-diff needs to know of a Go type.
func parseable(obj runtime.Object) (typed.ParseableType, error) {
	d := &deriver{seen: map[reflect.Type]string{}}
	root, err := d.refer(reflect.TypeOf(obj).Elem())
	if err != nil {
		return typed.ParseableType{}, fmt.Errorf("builtin: fields of %T: %w", obj, err)
	}
	atomic, deduced := anything(untypedAtomic, schema.Atomic), anything(untypedDeduced, schema.Separable)
	types := append(d.types, schema.TypeDef{Name: untypedAtomic, Atom: atomic}, schema.TypeDef{Name: untypedDeduced, Atom: deduced})
	return typed.ParseableType{TypeRef: root, Schema: &schema.Schema{Types: types}}, nil
}

// deriver collects the types that it met.
type deriver struct {
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
	if _, ok := zero.(json.Marshaler); ok {
		return schema.Atom{Map: &schema.Map{ElementType: schema.TypeRef{Inlined: anything(untypedDeduced, schema.Separable)}}}, nil
	}
	m := &schema.Map{}
	if slices.Contains(atomicStructs, name) {
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
		value := fieldDefaults[name+"."+tag]
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

// field is the type of a field; patch tags say how a list in it merges.
func (d *deriver) field(f reflect.StructField, name string) (schema.TypeRef, error) {
	if slices.Contains(atomicMaps, name) {
		ref, err := d.refer(f.Type)
		ref.Inlined.Map.ElementRelationship = schema.Atomic
		return ref, err
	}
	if f.Type.Kind() != reflect.Slice || f.Type.Elem().Kind() == reflect.Uint8 {
		return d.refer(f.Type)
	}
	if keys := listKeys[name]; keys != nil {
		return d.list(f.Type, schema.Associative, keys)
	}
	if !strings.Contains(f.Tag.Get("patchStrategy"), "merge") {
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
