package openapi

import (
	"errors"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
)

// errMalformed means that the JSON of a stored schema or document is malformed.
var errMalformed = errors.New("parse schema: malformed JSON")

// node is one level of a custom kind's schema, with the keywords that affect publishing. Its strings share the
// memory of the CRD's schema.
type node struct {
	plain    []member // copied unchanged
	typ      string   // with quotes; "" if there is none
	required []string // with quotes

	nullable, preserveUnknown, embedded, intOrString bool

	props          []property // ordered by name
	items          *node
	additional     *node
	additionalBool string // additionalProperties if it is a boolean
	validations    valueValidations

	mistyped bool // this node or a descendant has a type that is invalid in structural schemas
}

// valueValidations combine schemas.
type valueValidations struct {
	allOf, anyOf, oneOf []*node
	not                 *node
}

type member struct{ key, value string }

type property struct {
	name   string
	schema *node
	text   []byte // replaces schema if not nil
}

func compareProperties(a, b property) int { return strings.Compare(a.name, b.name) }

// parseSchema parses the JSON of an openAPIV3Schema. The caller must not modify text afterwards.
func parseSchema(text []byte) (*node, error) {
	c := object.NewCursor(text)
	n := readNode(c)
	if c.Broken() {
		return nil, errMalformed
	}
	return n, nil
}

func readNode(c *object.Cursor) *node {
	n := &node{}
	c.Members(func(key string) { n.readField(c, key) })
	slices.SortFunc(n.props, compareProperties)
	n.mistyped = n.mistyped || !n.hasStructuralTypes()
	return n
}

// readChild parses a child of n.
func (n *node) readChild(c *object.Cursor) *node {
	child := readNode(c)
	n.mistyped = n.mistyped || child.mistyped
	return child
}

func (n *node) readChildren(c *object.Cursor) (nodes []*node) {
	c.Elements(func(int) { nodes = append(nodes, n.readChild(c)) })
	return nodes
}

// readField parses the value of one keyword.
func (n *node) readField(c *object.Cursor, key string) {
	switch key {
	case "properties":
		c.Members(func(name string) { n.props = append(n.props, property{name: name, schema: n.readChild(c)}) })
	case "items":
		n.items = n.readChild(c)
	case "additionalProperties":
		if c.Kind() == '{' {
			n.additional = n.readChild(c)
		} else {
			n.additionalBool = c.Raw()
		}
	case "allOf":
		n.validations.allOf = n.readChildren(c)
	case "anyOf":
		n.validations.anyOf = n.readChildren(c)
	case "oneOf":
		n.validations.oneOf = n.readChildren(c)
	case "not":
		n.validations.not = n.readChild(c)
	case "required":
		c.Elements(func(int) { n.required = append(n.required, c.Raw()) })
	default:
		n.setPlain(key, c.Raw())
	}
}

// setPlain adds a keyword whose value is not a schema. Like upstream's Go types, it omits empty values such as
// false.
func (n *node) setPlain(key, value string) {
	empty := false
	switch value {
	case "false", `""`, "[]", "{}":
		empty = true
	case "null":
		return
	}
	switch key {
	case "default", "example", "externalDocs":
	case "type":
		if !empty {
			n.typ = value
		}
		return
	case "nullable":
		n.nullable = !empty
		return
	case "x-kubernetes-preserve-unknown-fields":
		n.preserveUnknown = !empty
		return
	case "x-kubernetes-embedded-resource":
		n.embedded = !empty
		return
	case "x-kubernetes-int-or-string":
		n.intOrString = !empty
		return
	default:
		if empty {
			return
		}
	}
	n.plain = append(n.plain, member{key, value})
}
