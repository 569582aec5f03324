package openapi

import (
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	objectMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
	listMeta   = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"
	typeMeta   = "io.k8s.apimachinery.pkg.apis.meta.v1.TypeMeta"

	apiConventions     = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
	embeddedAPIVersion = "apiVersion defines the versioned schema of this representation of an object. " +
		"More info: " + apiConventions + "#resources"
	embeddedKind = "kind is a string value representing the type of this object. In CamelCase. " +
		"More info: " + apiConventions + "#types-kinds"
)

// edition is a version of OpenAPI.
type edition int

const (
	v2 edition = 2
	v3 edition = 3
)

// refPrefix returns the prefix of references to schemas in a document.
func (e edition) refPrefix() string {
	if e == v2 {
		return "#/definitions/"
	}
	return "#/components/schemas/"
}

// appendRef appends a reference to a schema. If model is "", it appends the schema of a string.
func (e edition) appendRef(dst []byte, model string) []byte {
	if model == "" {
		return append(dst, `{"type":"string"}`...)
	}
	dst = append(dst, `{"$ref":`...)
	dst = object.AppendString(dst, e.refPrefix()+model)
	return append(dst, '}')
}

// appendDescribedRef appends a reference with its own description, for which v3 needs allOf.
func (e edition) appendDescribedRef(dst []byte, model, description string) []byte {
	if e == v2 {
		dst = append(dst, `{"$ref":`...)
		dst = object.AppendString(dst, e.refPrefix()+model)
	} else {
		dst = append(dst, `{"allOf":[`...)
		dst = e.appendRef(dst, model)
		dst = append(dst, ']')
	}
	dst = append(dst, `,"description":`...)
	dst = object.AppendString(dst, description)
	return append(dst, '}')
}

func appendStringType(dst []byte, description string) []byte {
	dst = append(dst, `{"description":`...)
	dst = object.AppendString(dst, description)
	return append(dst, `,"type":"string"}`...)
}

// publisher converts the schemas of custom kinds to the form in a document.
type publisher struct {
	edition
	docs metaDocs
}

// metaDocs holds the descriptions of the fields that every object has.
type metaDocs struct{ apiVersion, kind, metadata, listMetadata string }

// objectFields returns the fields that every object has, including objects that are embedded in other objects.
func (p publisher) objectFields(apiVersion, kind string) []property {
	return []property{
		{name: "apiVersion", text: appendStringType(nil, apiVersion)},
		{name: "kind", text: appendStringType(nil, kind)},
		{name: "metadata", text: p.appendDescribedRef(nil, objectMeta, p.docs.metadata)},
	}
}

// appendRoot appends the schema of a custom kind. n is nil if the CRD has no schema that can be published.
// extensions is the JSON of further members, with a leading comma.
func (p publisher) appendRoot(dst []byte, n *node, extensions string) []byte {
	if n == nil || p.edition == v2 && n.preserveUnknown {
		// The schema has no properties, because kubectl would reject fields that are not listed.
		dst = append(dst, `{"type":"object"`...)
		dst = append(dst, extensions...)
		return append(dst, '}')
	}
	s := p.schemaOf(n)
	s.setFields(p.objectFields(p.docs.apiVersion, p.docs.kind))
	dst = p.appendSchema(dst, s)
	dst = append(dst[:len(dst)-1], extensions...)
	return append(dst, '}')
}

// publishedSchema holds a node and the keywords that are published for it.
type publishedSchema struct {
	*node
	typ             string
	nullable        bool
	required        []string
	props           []property
	items           *node
	validations     valueValidations
	validationsOnly bool // the node is in a value validation, where additionalProperties is omitted
}

// setFields adds fields to s. A new field replaces a field with the same name.
func (s *publishedSchema) setFields(fields []property) {
	props := make([]property, 0, len(s.props)+len(fields))
	for _, p := range s.props {
		if !slices.ContainsFunc(fields, func(f property) bool { return f.name == p.name }) {
			props = append(props, p)
		}
	}
	s.props = append(props, fields...)
	slices.SortFunc(s.props, compareProperties)
}

// schemaOf returns the published form of n.
func (p publisher) schemaOf(n *node) *publishedSchema {
	s := &publishedSchema{
		node: n, typ: n.typ, nullable: n.nullable, required: n.required, props: n.props, items: n.items,
	}
	if p.edition == v2 {
		s.reduceForV2()
	} else {
		s.expandIntOrString()
	}
	if n.embedded && !(p.edition == v2 && n.preserveUnknown) {
		s.setFields(p.objectFields(embeddedAPIVersion, embeddedKind))
		s.require(`"kind"`)
		s.require(`"apiVersion"`)
	}
	return s
}

func (s *publishedSchema) require(name string) {
	if !slices.Contains(s.required, name) {
		s.required = append(slices.Clip(s.required), name)
	}
}

// expandIntOrString adds an anyOf with the types integer and string to a schema that has
// x-kubernetes-int-or-string.
func (s *publishedSchema) expandIntOrString() {
	s.validations = s.node.validations
	if !s.intOrString || s.hasIntOrString() {
		return
	}
	either := []*node{{typ: `"integer"`}, {typ: `"string"`}}
	if len(s.validations.anyOf) == 0 {
		s.validations.anyOf = either
		return
	}
	first := &node{validations: valueValidations{anyOf: either}}
	s.validations.allOf = append([]*node{first}, s.validations.allOf...)
}

// reduceForV2 removes what OpenAPI v2 or old versions of kubectl do not support. It removes the type and the fields
// of nullable values and of objects that preserve unknown fields. It removes the type of lists without an item
// schema. Nullable fields are no longer required.
func (s *publishedSchema) reduceForV2() {
	if s.nullable {
		s.typ, s.nullable, s.items, s.props = "", false, nil, nil
	}
	if s.preserveUnknown {
		s.items, s.props = nil, nil
	}
	if s.items == nil && s.typ == `"array"` || s.preserveUnknown && s.typ == `"object"` {
		s.typ = ""
	}
	if s.additional != nil && s.additional.nullable {
		s.required = nil
	}
	mayBeNull := func(p property) bool { return p.schema.nullable }
	if len(s.required) == 0 || !slices.ContainsFunc(s.props, mayBeNull) {
		return
	}
	s.required = slices.DeleteFunc(slices.Clone(s.required), func(quoted string) bool {
		name := object.NewCursor([]byte(quoted)).Text()
		return slices.ContainsFunc(s.props, func(p property) bool { return p.name == name && mayBeNull(p) })
	})
}

func (p publisher) appendNode(dst []byte, n *node) []byte { return p.appendSchema(dst, p.schemaOf(n)) }

// members appends the members of one JSON object.
type members struct {
	dst        []byte
	hasMembers bool
}

// key starts a member. The caller appends its value to dst.
func (m *members) key(name string) {
	if m.hasMembers {
		m.dst = append(m.dst, ',')
	}
	m.hasMembers = true
	m.dst = append(m.dst, '"')
	m.dst = append(m.dst, name...)
	m.dst = append(m.dst, `":`...)
}

func (m *members) raw(name, value string) {
	m.key(name)
	m.dst = append(m.dst, value...)
}

func (p publisher) appendSchema(dst []byte, s *publishedSchema) []byte {
	m := &members{dst: append(dst, '{')}
	for _, f := range s.plain {
		if f.key != "default" || p.edition != v2 { // v2 omits defaults, as for built-in kinds
			m.raw(f.key, f.value)
		}
	}
	if s.typ != "" {
		m.raw("type", s.typ)
	}
	if s.nullable {
		m.raw("nullable", "true")
	}
	if len(s.required) > 0 {
		m.raw("required", "["+strings.Join(s.required, ",")+"]")
	}
	p.appendChildren(m, s)
	p.appendExtensions(m, s)
	p.appendValidations(m, s.validations)
	return append(m.dst, '}')
}

func (p publisher) appendChildren(m *members, s *publishedSchema) {
	child := p.appendNode
	if s.validationsOnly {
		child = p.appendValidation
	}
	if s.items != nil {
		m.key("items")
		m.dst = child(m.dst, s.items)
	}
	if len(s.props) > 0 {
		m.key("properties")
		m.dst = append(m.dst, '{')
		for i, f := range s.props {
			if i > 0 {
				m.dst = append(m.dst, ',')
			}
			m.dst = append(object.AppendString(m.dst, f.name), ':')
			if f.text != nil {
				m.dst = append(m.dst, f.text...)
			} else {
				m.dst = child(m.dst, f.schema)
			}
		}
		m.dst = append(m.dst, '}')
	}
	switch {
	case s.validationsOnly:
	case s.additional != nil:
		m.key("additionalProperties")
		m.dst = p.appendNode(m.dst, s.additional)
	case s.additionalBool != "":
		m.raw("additionalProperties", s.additionalBool)
	}
}

func (p publisher) appendExtensions(m *members, s *publishedSchema) {
	if s.preserveUnknown {
		m.raw("x-kubernetes-preserve-unknown-fields", "true")
	}
	if s.embedded {
		m.raw("x-kubernetes-embedded-resource", "true")
	}
	if s.intOrString {
		m.raw("x-kubernetes-int-or-string", "true")
	}
}

// appendValidations appends the value validations of a schema. It does not add the fields that every object has.
func (p publisher) appendValidations(m *members, j valueValidations) {
	nodes := func(name string, nodes []*node) {
		if len(nodes) == 0 {
			return
		}
		m.key(name)
		m.dst = append(m.dst, '[')
		for i, n := range nodes {
			if i > 0 {
				m.dst = append(m.dst, ',')
			}
			m.dst = p.appendValidation(m.dst, n)
		}
		m.dst = append(m.dst, ']')
	}
	nodes("allOf", j.allOf)
	nodes("anyOf", j.anyOf)
	nodes("oneOf", j.oneOf)
	if j.not != nil {
		m.key("not")
		m.dst = p.appendValidation(m.dst, j.not)
	}
}

func (p publisher) appendValidation(dst []byte, n *node) []byte {
	return p.appendSchema(dst, &publishedSchema{node: n, typ: n.typ, required: n.required, props: n.props,
		items: n.items, validations: n.validations, validationsOnly: true})
}
