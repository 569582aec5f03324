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

	embeddedAPIVersion = "apiVersion defines the versioned schema of this representation of an object. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"
	embeddedKind       = "kind is a string value representing the type of this object. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"
)

// edition is a version of OpenAPI.
type edition int

const (
	v2 edition = 2
	v3 edition = 3
)

// refPrefix is where schemas lie in a document.
func (e edition) refPrefix() string {
	if e == v2 {
		return "#/definitions/"
	}
	return "#/components/schemas/"
}

// appendRef refers to a schema; "" is text.
func (e edition) appendRef(dst []byte, model string) []byte {
	if model == "" {
		return append(dst, `{"type":"string"}`...)
	}
	dst = append(dst, `{"$ref":`...)
	dst = object.AppendString(dst, e.refPrefix()+model)
	return append(dst, '}')
}

// appendDescribedRef appends a reference that has a description of its own, for which v3
// needs allOf.
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

// publisher turns the schemas of custom kinds into those of a document.
type publisher struct {
	edition
	docs metaDocs
}

// metaDocs are the descriptions of the fields that every object has.
type metaDocs struct{ apiVersion, kind, metadata, listMetadata string }

// objectFields are the fields that every object has, at the root or embedded.
func (p publisher) objectFields(apiVersion, kind string) []property {
	return []property{
		{name: "apiVersion", text: appendStringType(nil, apiVersion)},
		{name: "kind", text: appendStringType(nil, kind)},
		{name: "metadata", text: p.appendDescribedRef(nil, objectMeta, p.docs.metadata)},
	}
}

// appendRoot appends the schema of a custom kind. n is nil where the CRD has none that can be
// published. extensions is the text of further members, with a leading comma.
func (p publisher) appendRoot(dst []byte, n *node, extensions string) []byte {
	if n == nil || p.edition == v2 && n.preserve {
		// Without any fields, for kubectl would refuse those that are not named.
		dst = append(dst, `{"type":"object"`...)
		dst = append(dst, extensions...)
		return append(dst, '}')
	}
	s := p.view(n)
	s.set(p.objectFields(p.docs.apiVersion, p.docs.kind))
	dst = p.appendShape(dst, s)
	dst = append(dst[:len(dst)-1], extensions...)
	return append(dst, '}')
}

// shape is what is published of a node.
type shape struct {
	*node
	typ      string
	nullable bool
	required []string
	props    []property
	items    *node
	junctors junctors
	narrows  bool // stands below a junctor, where additionalProperties says nothing
}

// set puts fields into s in place of those of the same name.
func (s *shape) set(fields []property) {
	props := make([]property, 0, len(s.props)+len(fields))
	for _, p := range s.props {
		if !slices.ContainsFunc(fields, func(f property) bool { return f.name == p.name }) {
			props = append(props, p)
		}
	}
	s.props = append(props, fields...)
	slices.SortFunc(s.props, compareProperties)
}

// view says what is published of n.
func (p publisher) view(n *node) *shape {
	s := &shape{node: n, typ: n.typ, nullable: n.nullable, required: n.required, props: n.props, items: n.items}
	if p.edition == v2 {
		s.reduce()
	} else {
		s.unfold()
	}
	if n.embedded && !(p.edition == v2 && n.preserve) {
		s.set(p.objectFields(embeddedAPIVersion, embeddedKind))
		s.require(`"kind"`)
		s.require(`"apiVersion"`)
	}
	return s
}

func (s *shape) require(name string) {
	if !slices.Contains(s.required, name) {
		s.required = append(slices.Clip(s.required), name)
	}
}

// unfold spells out that a value is an integer or a string.
func (s *shape) unfold() {
	s.junctors = s.node.junctors
	if !s.intOrString || s.folded() {
		return
	}
	either := []*node{{typ: `"integer"`}, {typ: `"string"`}}
	if len(s.junctors.anyOf) == 0 {
		s.junctors.anyOf = either
		return
	}
	first := &node{junctors: junctors{anyOf: either}}
	s.junctors.allOf = append([]*node{first}, s.junctors.allOf...)
}

// reduce leaves out what OpenAPI v2 or an old kubectl does not know: junctors; the
// type and the fields of what may be null or hold anything; lists of nothing in particular.
func (s *shape) reduce() {
	if s.nullable {
		s.typ, s.nullable, s.items, s.props = "", false, nil, nil
	}
	if s.preserve {
		s.items, s.props = nil, nil
	}
	if s.items == nil && s.typ == `"array"` || s.preserve && s.typ == `"object"` {
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

func (p publisher) appendNode(dst []byte, n *node) []byte { return p.appendShape(dst, p.view(n)) }

// members writes the members of one object.
type members struct {
	dst  []byte
	some bool
}

// key begins a member; its value is appended to dst.
func (m *members) key(name string) {
	if m.some {
		m.dst = append(m.dst, ',')
	}
	m.some = true
	m.dst = append(m.dst, '"')
	m.dst = append(m.dst, name...)
	m.dst = append(m.dst, `":`...)
}

func (m *members) raw(name, value string) {
	m.key(name)
	m.dst = append(m.dst, value...)
}

func (p publisher) appendShape(dst []byte, s *shape) []byte {
	m := &members{dst: append(dst, '{')}
	for _, f := range s.plain {
		if f.key != "default" || p.edition != v2 { // as of built-in kinds
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
	p.appendJunctors(m, s.junctors)
	return append(m.dst, '}')
}

func (p publisher) appendChildren(m *members, s *shape) {
	child := p.appendNode
	if s.narrows {
		child = p.appendNarrowing
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
	case s.narrows:
	case s.additional != nil:
		m.key("additionalProperties")
		m.dst = p.appendNode(m.dst, s.additional)
	case s.allowsMore != "":
		m.raw("additionalProperties", s.allowsMore)
	}
}

func (p publisher) appendExtensions(m *members, s *shape) {
	if s.preserve {
		m.raw("x-kubernetes-preserve-unknown-fields", "true")
	}
	if s.embedded {
		m.raw("x-kubernetes-embedded-resource", "true")
	}
	if s.intOrString {
		m.raw("x-kubernetes-int-or-string", "true")
	}
}

// appendJunctors appends schemas that only narrow: nothing is added to them.
func (p publisher) appendJunctors(m *members, j junctors) {
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
			m.dst = p.appendNarrowing(m.dst, n)
		}
		m.dst = append(m.dst, ']')
	}
	nodes("allOf", j.allOf)
	nodes("anyOf", j.anyOf)
	nodes("oneOf", j.oneOf)
	if j.not != nil {
		m.key("not")
		m.dst = p.appendNarrowing(m.dst, j.not)
	}
}

func (p publisher) appendNarrowing(dst []byte, n *node) []byte {
	return p.appendShape(dst, &shape{node: n, typ: n.typ, required: n.required, props: n.props,
		items: n.items, junctors: n.junctors, narrows: true})
}
