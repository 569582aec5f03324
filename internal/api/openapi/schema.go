package openapi

import (
	"slices"
	"strconv"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// parsePublishable parses the schema of a custom kind. It returns nil if the kind has no schema. It also returns
// nil if the schema is not structural and therefore cannot be published. Only a CRD that preserves unknown fields can
// have such a schema.
func parsePublishable(text []byte, preserveUnknownFields bool) (*schema.Node, error) {
	s, err := schema.Parse(text, preserveUnknownFields)
	if err != nil || s.Root.Has(schema.Mistyped) || preserveUnknownFields && s.Root != nil && !s.Root.IsStructural() {
		return nil, err
	}
	return s.Root, nil
}

// publisher converts the schemas of custom kinds to the form in a document.
type publisher struct {
	edition
	docs  metaDocs
	names []string // names of the properties that are being appended
}

// metaDocs holds the descriptions of the fields that every object has.
type metaDocs struct{ apiVersion, kind, metadata, listMetadata string }

// objectFields returns the fields that every object has, including objects that are embedded in other objects.
func (p *publisher) objectFields(apiVersion, kind string) map[string][]byte {
	return map[string][]byte{
		"apiVersion": appendStringType(nil, apiVersion),
		"kind":       appendStringType(nil, kind),
		"metadata":   p.appendDescribedRef(nil, objectMeta, p.docs.metadata),
	}
}

// appendRoot appends the schema of a custom kind. n is nil if the CRD has no schema that can be published.
// extensions is the JSON of further members, with a leading comma.
func (p *publisher) appendRoot(dst []byte, n *schema.Node, extensions string) []byte {
	if n == nil || p.edition == v2 && n.Preserve {
		// The schema has no properties, because kubectl would reject fields that are not listed.
		dst = append(dst, `{"type":"object"`...)
		dst = append(dst, extensions...)
		return append(dst, '}')
	}
	s := p.schemaOf(n)
	s.fields = p.objectFields(p.docs.apiVersion, p.docs.kind)
	dst = p.appendSchema(dst, &s)
	dst = append(dst[:len(dst)-1], extensions...)
	return append(dst, '}')
}

// publishedSchema holds a node and the values of keywords that are published in place of the node's.
type publishedSchema struct {
	*schema.Node
	typ         string
	nullable    bool
	required    []string
	properties  map[string]*schema.Node
	fields      map[string][]byte // JSON of additional properties, which replace properties with the same name
	items       *schema.Node
	validations *schema.Checks // value validations; nil if they are not published

	isValidation bool // the node is in a value validation, where additionalProperties is omitted
}

// schemaOf returns the published form of n.
func (p *publisher) schemaOf(n *schema.Node) publishedSchema {
	s := publishedSchema{Node: n, typ: n.Type, nullable: n.Nullable, required: n.Required, properties: n.Properties,
		items: n.Items}
	if p.edition == v2 {
		s.reduceForV2()
	} else {
		s.expandIntOrString()
	}
	if n.Embedded && !(p.edition == v2 && n.Preserve) {
		s.fields = p.objectFields(embeddedAPIVersion, embeddedKind)
		s.require("kind")
		s.require("apiVersion")
	}
	return s
}

func (s *publishedSchema) require(name string) {
	if !slices.Contains(s.required, name) {
		s.required = append(slices.Clip(s.required), name)
	}
}

// integerOrString are the types of x-kubernetes-int-or-string.
var integerOrString = []*schema.Node{{Type: "integer"}, {Type: "string"}}

// expandIntOrString adds an anyOf with the types integer and string to a schema that has
// x-kubernetes-int-or-string.
func (s *publishedSchema) expandIntOrString() {
	s.validations = s.Checked()
	if !s.IntOrString || listsIntOrString(s.validations) {
		return
	}
	expanded := *s.validations
	if len(expanded.AnyOf) == 0 {
		expanded.AnyOf = integerOrString
	} else {
		first := &schema.Node{Checks: &schema.Checks{AnyOf: integerOrString}}
		expanded.AllOf = append([]*schema.Node{first}, expanded.AllOf...)
	}
	s.validations = &expanded
}

// listsIntOrString reports whether c restricts values to the two types of x-kubernetes-int-or-string.
func listsIntOrString(c *schema.Checks) bool {
	is := func(list []*schema.Node) bool {
		return len(list) == 2 && isOnlyType(list[0], "integer") && isOnlyType(list[1], "string")
	}
	return is(c.AnyOf) || len(c.AllOf) > 0 && is(c.AllOf[0].Checked().AnyOf)
}

var typeOrAdditional = schema.SetOf("type", "additionalProperties")

// isOnlyType reports whether n has the given type and no other keyword with an effect.
func isOnlyType(n *schema.Node, typ string) bool {
	closed := n.Additional == nil || n.Additional.Schema == nil && !n.Additional.Allows
	return n.Type == typ && closed && n.NonEmpty()&^typeOrAdditional == 0
}

// reduceForV2 removes what OpenAPI v2 or old versions of kubectl do not support. It removes the type and the fields
// of nullable values and of objects that preserve unknown fields. It removes the type of lists without an item
// schema. Nullable fields are no longer required.
func (s *publishedSchema) reduceForV2() {
	if s.nullable {
		s.typ, s.nullable = "", false
	}
	if s.Nullable || s.Preserve {
		s.items, s.properties = nil, nil
	}
	if s.items == nil && s.typ == "array" || s.Preserve && s.typ == "object" {
		s.typ = ""
	}
	if s.Additional != nil && s.Additional.Schema != nil && s.Additional.Schema.Nullable {
		s.required = nil
	}
	mayBeNull := func(name string) bool { return s.properties[name] != nil && s.properties[name].Nullable }
	if slices.ContainsFunc(s.required, mayBeNull) {
		s.required = slices.DeleteFunc(slices.Clone(s.required), mayBeNull)
	}
}

// Keywords that are not published by copying their values.
var (
	defaults = schema.SetOf("default")
	handled  = schema.SetOf("type", "nullable", "required", "items", "properties", "additionalProperties", "allOf",
		"anyOf", "oneOf", "not", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource",
		"x-kubernetes-int-or-string")
)

// copied returns the keywords whose values are copied. v2 omits defaults, as for built-in kinds.
func (p *publisher) copied() schema.Keywords {
	if p.edition == v2 {
		return ^handled &^ defaults
	}
	return ^handled
}

func (p *publisher) appendSchema(dst []byte, s *publishedSchema) []byte {
	m := &members{dst: append(dst, '{')}
	start := len(m.dst)
	m.dst = s.AppendMembers(m.dst, p.copied())
	m.hasMembers = len(m.dst) > start
	if s.typ != "" {
		m.text("type", s.typ)
	}
	if s.nullable {
		m.raw("nullable", "true")
	}
	if len(s.required) > 0 {
		m.texts("required", s.required)
	}
	p.appendChildren(m, s)
	if s.Preserve {
		m.raw("x-kubernetes-preserve-unknown-fields", "true")
	}
	if s.Embedded {
		m.raw("x-kubernetes-embedded-resource", "true")
	}
	if s.IntOrString {
		m.raw("x-kubernetes-int-or-string", "true")
	}
	if s.validations != nil {
		p.appendValidations(m, s.validations)
	}
	return append(m.dst, '}')
}

// appendNode appends the published form of n.
func (p *publisher) appendNode(dst []byte, n *schema.Node) []byte {
	s := p.schemaOf(n)
	return p.appendSchema(dst, &s)
}

// appendChild appends a property or the items of s.
func (p *publisher) appendChild(dst []byte, s *publishedSchema, n *schema.Node) []byte {
	if s.isValidation {
		return p.appendValidation(dst, n)
	}
	return p.appendNode(dst, n)
}

func (p *publisher) appendChildren(m *members, s *publishedSchema) {
	if s.items != nil {
		m.key("items")
		m.dst = p.appendChild(m.dst, s, s.items)
	}
	if len(s.properties)+len(s.fields) > 0 {
		m.key("properties")
		m.dst = p.appendProperties(m.dst, s)
	}
	switch a := s.Additional; {
	case a == nil || s.isValidation:
	case a.Schema != nil:
		m.key("additionalProperties")
		m.dst = p.appendNode(m.dst, a.Schema)
	default:
		m.raw("additionalProperties", strconv.FormatBool(a.Allows))
	}
}

func (p *publisher) appendProperties(dst []byte, s *publishedSchema) []byte {
	start := len(p.names)
	for name := range s.properties {
		p.names = append(p.names, name)
	}
	for name := range s.fields {
		if s.properties[name] == nil {
			p.names = append(p.names, name)
		}
	}
	names := p.names[start:]
	slices.Sort(names)
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(object.AppendString(dst, name), ':')
		if text := s.fields[name]; text != nil {
			dst = append(dst, text...)
		} else {
			dst = p.appendChild(dst, s, s.properties[name])
		}
	}
	p.names = p.names[:start]
	return append(dst, '}')
}

// appendValidations appends the value validations of a schema. It does not add the fields that every object has.
func (p *publisher) appendValidations(m *members, c *schema.Checks) {
	list := func(name string, nodes []*schema.Node) {
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
	list("allOf", c.AllOf)
	list("anyOf", c.AnyOf)
	list("oneOf", c.OneOf)
	if c.Not != nil {
		m.key("not")
		m.dst = p.appendValidation(m.dst, c.Not)
	}
}

func (p *publisher) appendValidation(dst []byte, n *schema.Node) []byte {
	return p.appendSchema(dst, &publishedSchema{Node: n, typ: n.Type, required: n.Required, properties: n.Properties,
		items: n.Items, validations: n.Checked(), isValidation: true})
}
