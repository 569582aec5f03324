package openapi

import (
	"errors"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
)

// errMalformed says that JSON which the server itself keeps is broken.
var errMalformed = errors.New("read the schema: malformed JSON")

// node is one level of a custom kind's schema, as far as publishing looks into it. The
// texts are parts of the CRD's.
type node struct {
	plain    []member // copied as they stand
	typ      string   // in its quotes; "" if none
	required []string // in their quotes

	nullable, preserve, embedded, intOrString bool

	props      []property // ordered by name
	items      *node
	additional *node
	allowsMore string // additionalProperties as true or false
	junctors   junctors

	mistyped bool // has a type that no structural schema has, here or below
}

// junctors combine schemas.
type junctors struct {
	allOf, anyOf, oneOf []*node
	not                 *node
}

type member struct{ key, value string }

type property struct {
	name   string
	schema *node
	text   []byte // stands for schema, if not nil
}

func compareProperties(a, b property) int { return strings.Compare(a.name, b.name) }

// parseSchema reads the JSON of an openAPIV3Schema, which must not change any more.
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

// readChild reads a node below n.
func (n *node) readChild(c *object.Cursor) *node {
	child := readNode(c)
	n.mistyped = n.mistyped || child.mistyped
	return child
}

func (n *node) readChildren(c *object.Cursor) (nodes []*node) {
	c.Elements(func(int) { nodes = append(nodes, n.readChild(c)) })
	return nodes
}

// readField reads the value of one keyword.
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
			n.allowsMore = c.Raw()
		}
	case "allOf":
		n.junctors.allOf = n.readChildren(c)
	case "anyOf":
		n.junctors.anyOf = n.readChildren(c)
	case "oneOf":
		n.junctors.oneOf = n.readChildren(c)
	case "not":
		n.junctors.not = n.readChild(c)
	case "required":
		c.Elements(func(int) { n.required = append(n.required, c.Raw()) })
	default:
		n.setPlain(key, c.Raw())
	}
}

// setPlain notes a keyword that holds no schema. What says nothing (false, an
// empty text) is left out, as the Go types of upstream do.
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
		n.preserve = !empty
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
