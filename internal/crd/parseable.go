package crd

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	kjson "sigs.k8s.io/json"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// Names of types in the schemas of structured-merge-diff. They are internal and never reach clients.
const (
	rootType       = "object"
	atomicType     = "__untyped_atomic_"
	deducedType    = "__untyped_deduced_"
	metaPrefix     = "io.k8s.apimachinery.pkg.apis.meta.v1."
	objectMetaType = metaPrefix + "ObjectMeta"
	timeType       = metaPrefix + "Time"
)

// newParseable translates a schema for server-side apply, as kube-openapi's schemaconv translates the schema that
// apiextensions-apiserver publishes. A nil root allows any object.
func newParseable(root *schema.Node, preserveUnknownFields bool) (typed.ParseableType, error) {
	c := converter{}
	n := root
	if n == nil {
		n = &schema.Node{Type: "object"}
	} else {
		n = withObjectFields(n)
	}
	atom := c.atom(n, preserveUnknownFields)
	if err := errors.Join(c.errs...); err != nil {
		return typed.ParseableType{}, err
	}
	types := append([]smd.TypeDef{{Name: rootType, Atom: atom}}, metaTypes()...)
	parser := typed.Parser{Schema: smd.Schema{Types: types}}
	return parser.Type(rootType), nil
}

// objectMeta is a placeholder node that represents a reference to ObjectMeta.
var objectMeta = &schema.Node{}

// withObjectFields returns a copy of n with the fields apiVersion, kind and metadata.
func withObjectFields(n *schema.Node) *schema.Node {
	out := *n
	out.Properties = maps.Clone(n.Properties)
	if out.Properties == nil {
		out.Properties = map[string]*schema.Node{}
	}
	out.Properties["apiVersion"] = &schema.Node{Type: "string"}
	out.Properties["kind"] = &schema.Node{Type: "string"}
	out.Properties["metadata"] = objectMeta
	return &out
}

type converter struct{ errs []error }

func (c *converter) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("schema: "+format, args...))
}

func named(name string) smd.TypeRef { return smd.TypeRef{NamedType: &name} }

// atom converts n. preserve is true if an ancestor of n preserves unknown fields. In contrast to pruning, all nodes
// below such an ancestor preserve unknown fields.
func (c *converter) atom(n *schema.Node, preserve bool) smd.Atom {
	preserve = preserve || n.Preserve
	switch n.Type {
	case "object":
		return smd.Atom{Map: c.object(n, preserve)}
	case "array":
		return smd.Atom{List: c.list(n, preserve)}
	case "string":
		if n.Format == "" || n.Format == "byte" {
			return scalar(smd.String)
		}
		return scalar(smd.Untyped)
	case "integer", "number":
		return scalar(smd.Numeric)
	case "boolean":
		return scalar(smd.Boolean)
	case "":
		a := scalar(smd.Untyped)
		a.List, a.Map = c.list(n, preserve), c.object(n, preserve)
		return a
	}
	c.fail("unrecognized type: '%v'", n.Type)
	return scalar(smd.Untyped)
}

func scalar(s smd.Scalar) smd.Atom { return smd.Atom{Scalar: &s} }

func (c *converter) ref(n *schema.Node, preserve bool) smd.TypeRef {
	if n == objectMeta {
		return named(objectMetaType)
	}
	if n.Embedded {
		n = withObjectFields(n)
	}
	return smd.TypeRef{Inlined: c.atom(n, preserve), Nullable: n.Nullable}
}

func (c *converter) object(n *schema.Node, preserve bool) *smd.Map {
	m := &smd.Map{ElementType: c.elements(n, preserve)}
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		child := n.Properties[name]
		m.Fields = append(m.Fields, smd.StructField{Name: name, Type: c.ref(child, preserve),
			Default: c.defaultOf(child)})
	}
	switch n.MapType {
	case "":
	case "atomic":
		m.ElementRelationship = smd.Atomic
	case "granular":
		m.ElementRelationship = smd.Separable
	default:
		c.fail("unknown map type %v", n.MapType)
	}
	return m
}

// elements returns the type of the fields of n that are not in its properties.
func (c *converter) elements(n *schema.Node, preserve bool) smd.TypeRef {
	switch {
	case n.Additional == nil && (preserve || len(n.Properties) == 0):
		return named(deducedType)
	case n.Additional == nil:
		return smd.TypeRef{}
	case n.Additional.Schema != nil:
		return c.ref(n.Additional.Schema, preserve)
	case n.Additional.Allows:
		return named(deducedType)
	}
	return smd.TypeRef{}
}

func (c *converter) list(n *schema.Node, preserve bool) *smd.List {
	l := &smd.List{ElementRelationship: smd.Atomic}
	switch n.ListType {
	case "", "atomic":
	case "set":
		l.ElementRelationship = smd.Associative
	case "map":
		l.ElementRelationship, l.Keys = smd.Associative, n.ListMapKeys
		if len(n.ListMapKeys) == 0 {
			c.fail("missing map keys")
		}
	default:
		c.fail("unknown list type %v", n.ListType)
	}
	switch {
	case n.Items != nil:
		l.ElementType = c.ref(n.Items, preserve)
	case n.Type != "":
		c.fail("`items` must be specified on arrays")
		l.ElementType = named(atomicType)
	default:
		l.ElementType = named(atomicType)
	}
	return l
}

func (c *converter) defaultOf(n *schema.Node) any {
	if n.Default == "" {
		return nil
	}
	var v any
	if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(n.Default), &v); err != nil {
		c.fail("default: %v", err)
	}
	return v
}

// metaTypes returns the types that all schemas share. They equal the types in the OpenAPI document of
// k8s.io/apimachinery. A test compares them with client-go's copy.
var metaTypes = sync.OnceValue(func() []smd.TypeDef {
	text, number, truth := refTo(scalar(smd.String)), refTo(scalar(smd.Numeric)), refTo(scalar(smd.Boolean))
	time := named(timeType)
	anything := scalar(smd.Untyped)
	anything.List = &smd.List{ElementType: named(atomicType), ElementRelationship: smd.Atomic}
	deduced := anything
	deduced.Map = &smd.Map{ElementType: named(deducedType), ElementRelationship: smd.Separable}
	anything.Map = &smd.Map{ElementType: named(atomicType), ElementRelationship: smd.Atomic}
	texts := refTo(smd.Atom{Map: &smd.Map{ElementType: text}})
	required := func(name string) smd.StructField { return smd.StructField{Name: name, Type: text, Default: ""} }
	return []smd.TypeDef{
		{Name: atomicType, Atom: anything},
		{Name: deducedType, Atom: deduced},
		{Name: timeType, Atom: scalar(smd.Untyped)},
		{Name: metaPrefix + "FieldsV1", Atom: smd.Atom{Map: &smd.Map{ElementType: refTo(deduced)}}},
		{Name: metaPrefix + "ManagedFieldsEntry", Atom: structOf("", member("apiVersion", text),
			member("fieldsType", text),
			member("fieldsV1", named(metaPrefix+"FieldsV1")), member("manager", text), member("operation", text),
			member("subresource", text), member("time", time))},
		{Name: metaPrefix + "OwnerReference", Atom: structOf(smd.Atomic, required("apiVersion"),
			member("blockOwnerDeletion", truth), member("controller",
				truth), required("kind"), required("name"), required("uid"))},
		{Name: objectMetaType, Atom: structOf("", member("annotations", texts), member("creationTimestamp", time),
			member("deletionGracePeriodSeconds", number), member("deletionTimestamp", time),
			member("finalizers", listOf(text, smd.Associative)), member("generateName", text), member("generation",
				number),
			member("labels", texts), member("managedFields",
				listOf(named(metaPrefix+"ManagedFieldsEntry"), smd.Atomic)),
			member("name", text), member("namespace", text),
			member("ownerReferences", listOf(named(metaPrefix+"OwnerReference"), smd.Associative, "uid")),
			member("resourceVersion", text), member("selfLink", text), member("uid", text))},
	}
})

func refTo(a smd.Atom) smd.TypeRef { return smd.TypeRef{Inlined: a} }

func member(name string, t smd.TypeRef) smd.StructField { return smd.StructField{Name: name, Type: t} }

func structOf(r smd.ElementRelationship, fields ...smd.StructField) smd.Atom {
	return smd.Atom{Map: &smd.Map{Fields: fields, ElementRelationship: r}}
}

func listOf(element smd.TypeRef, r smd.ElementRelationship, keys ...string) smd.TypeRef {
	return refTo(smd.Atom{List: &smd.List{ElementType: element, ElementRelationship: r, Keys: keys}})
}
