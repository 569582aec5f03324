package schema

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	kjson "sigs.k8s.io/json"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
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
func newParseable(root *node, preserveUnknownFields bool) (typed.ParseableType, error) {
	c := converter{}
	n := root
	if n == nil {
		n = &node{typ: "object"}
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
var objectMeta = &node{}

// withObjectFields returns a copy of n with the fields apiVersion, kind and metadata.
func withObjectFields(n *node) *node {
	out := *n
	out.properties = maps.Clone(n.properties)
	if out.properties == nil {
		out.properties = map[string]*node{}
	}
	out.properties["apiVersion"] = &node{typ: "string"}
	out.properties["kind"] = &node{typ: "string"}
	out.properties["metadata"] = objectMeta
	return &out
}

type converter struct{ errs []error }

func (c *converter) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("schema: "+format, args...))
}

func named(name string) smd.TypeRef { return smd.TypeRef{NamedType: &name} }

// atom converts n. preserve is true if an ancestor of n preserves unknown fields. In contrast to pruning, all nodes
// below such an ancestor preserve unknown fields.
func (c *converter) atom(n *node, preserve bool) smd.Atom {
	preserve = preserve || n.preserve
	switch n.typ {
	case "object":
		return smd.Atom{Map: c.object(n, preserve)}
	case "array":
		return smd.Atom{List: c.list(n, preserve)}
	case "string":
		if n.format == "" || n.format == "byte" {
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
	c.fail("unrecognized type: '%v'", n.typ)
	return scalar(smd.Untyped)
}

func scalar(s smd.Scalar) smd.Atom { return smd.Atom{Scalar: &s} }

func (c *converter) ref(n *node, preserve bool) smd.TypeRef {
	if n == objectMeta {
		return named(objectMetaType)
	}
	if n.embedded {
		n = withObjectFields(n)
	}
	return smd.TypeRef{Inlined: c.atom(n, preserve), Nullable: n.nullable}
}

func (c *converter) object(n *node, preserve bool) *smd.Map {
	m := &smd.Map{ElementType: c.elements(n, preserve)}
	for _, name := range slices.Sorted(maps.Keys(n.properties)) {
		child := n.properties[name]
		m.Fields = append(m.Fields, smd.StructField{Name: name, Type: c.ref(child, preserve),
			Default: c.defaultOf(child)})
	}
	switch n.mapType {
	case "":
	case "atomic":
		m.ElementRelationship = smd.Atomic
	case "granular":
		m.ElementRelationship = smd.Separable
	default:
		c.fail("unknown map type %v", n.mapType)
	}
	return m
}

// elements returns the type of the fields of n that are not in its properties.
func (c *converter) elements(n *node, preserve bool) smd.TypeRef {
	switch {
	case n.additional == nil && (preserve || len(n.properties) == 0):
		return named(deducedType)
	case n.additional == nil:
		return smd.TypeRef{}
	case n.additional.schema != nil:
		return c.ref(n.additional.schema, preserve)
	case n.additional.allows:
		return named(deducedType)
	}
	return smd.TypeRef{}
}

func (c *converter) list(n *node, preserve bool) *smd.List {
	l := &smd.List{ElementRelationship: smd.Atomic}
	switch n.listType {
	case "", "atomic":
	case "set":
		l.ElementRelationship = smd.Associative
	case "map":
		l.ElementRelationship, l.Keys = smd.Associative, n.listKeys
		if len(n.listKeys) == 0 {
			c.fail("missing map keys")
		}
	default:
		c.fail("unknown list type %v", n.listType)
	}
	switch {
	case n.items != nil:
		l.ElementType = c.ref(n.items, preserve)
	case n.typ != "":
		c.fail("`items` must be specified on arrays")
		l.ElementType = named(atomicType)
	default:
		l.ElementType = named(atomicType)
	}
	return l
}

func (c *converter) defaultOf(n *node) any {
	if n.defaultJSON == "" {
		return nil
	}
	var v any
	if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(n.defaultJSON), &v); err != nil {
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
