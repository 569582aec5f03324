package openapi

import (
	"bytes"
	"fmt"
	"slices"
)

// node is one level of a custom kind's schema, as far as publishing looks into it. The
// slices are parts of the CRD's text.
type node struct {
	plain    []member // copied as they stand
	typ      []byte   // in its quotes; nil if none
	required [][]byte // in their quotes

	nullable, preserve, embedded, intOrString bool

	props      []property // ordered by name
	items      *node
	additional *node
	allowsMore []byte // additionalProperties as true or false
	junctors   junctors

	foreign     bool // says something that a structural schema cannot say
	hasGenerics bool // says something that may not stand below a junctor
}

// junctors combine schemas.
type junctors struct {
	allOf, anyOf, oneOf []*node
	not                 *node
}

type member struct{ key, value []byte }

type property struct {
	name   []byte // in its quotes
	schema *node
	text   []byte // stands for schema, if not nil
}

// parseSchema reads the JSON of an openAPIV3Schema.
func parseSchema(text []byte) (*node, error) {
	n, err := readNode(&cursor{data: text})
	if err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	return n, nil
}

func readNode(c *cursor) (*node, error) {
	n := &node{}
	if c.peek() != '{' {
		if _, err := c.skip(); err != nil {
			return nil, err
		}
		return n, nil
	}
	err := c.object(func(key []byte) error { return n.readField(c, key) })
	slices.SortFunc(n.props, func(a, b property) int { return bytes.Compare(a.name, b.name) })
	return n, err
}

// readField reads the value of one keyword.
func (n *node) readField(c *cursor, key []byte) (err error) {
	switch string(key[1 : len(key)-1]) {
	case "properties":
		return n.readProperties(c)
	case "items":
		n.foreign = n.foreign || c.peek() == '['
		n.items, err = readNode(c)
	case "additionalProperties":
		if c.peek() == '{' {
			n.additional, err = readNode(c)
		} else {
			n.allowsMore, err = c.skip()
		}
		n.hasGenerics = n.hasGenerics || n.additional != nil || string(n.allowsMore) == "true"
	case "allOf":
		n.junctors.allOf, err = readNodes(c)
	case "anyOf":
		n.junctors.anyOf, err = readNodes(c)
	case "oneOf":
		n.junctors.oneOf, err = readNodes(c)
	case "not":
		n.junctors.not, err = readNode(c)
	case "required":
		return readArray(c, func() error {
			name, err := c.skip()
			n.required = append(n.required, name)
			return err
		})
	default:
		var value []byte
		if value, err = c.skip(); err == nil {
			n.setPlain(key, value)
		}
	}
	return err
}

func (n *node) readProperties(c *cursor) error {
	if c.peek() != '{' {
		_, err := c.skip()
		return err
	}
	return c.object(func(name []byte) error {
		schema, err := readNode(c)
		n.props = append(n.props, property{name: name, schema: schema})
		return err
	})
}

func readNodes(c *cursor) (nodes []*node, err error) {
	err = readArray(c, func() error {
		n, err := readNode(c)
		nodes = append(nodes, n)
		return err
	})
	return nodes, err
}

// readArray reads an array, or skips what is none.
func readArray(c *cursor, each func() error) error {
	if c.peek() != '[' {
		_, err := c.skip()
		return err
	}
	return c.array(each)
}

// setPlain notes a keyword that holds no schema. What says nothing (false, an
// empty text) is left out, as the Go types of upstream do.
func (n *node) setPlain(key, value []byte) {
	empty := false
	switch string(value) {
	case "false", `""`, "[]", "{}":
		empty = true
	case "null":
		return
	}
	switch name := string(key[1 : len(key)-1]); name {
	case "default":
		n.hasGenerics = true
	case "example", "externalDocs":
	case "type":
		if !empty {
			n.typ = value
			n.foreign = n.foreign || !slices.Contains(jsonTypes, string(value))
		}
		return
	case "nullable":
		n.nullable = !empty
		n.hasGenerics = n.hasGenerics || !empty
		return
	case "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string":
		n.setExtension(name, !empty)
		return
	default:
		if empty {
			return
		}
		n.foreign = n.foreign || slices.Contains(unsupported, name)
		n.hasGenerics = n.hasGenerics || slices.Contains(generics, name)
	}
	n.plain = append(n.plain, member{key, value})
}

func (n *node) setExtension(name string, on bool) {
	n.hasGenerics = n.hasGenerics || on
	switch name {
	case "x-kubernetes-preserve-unknown-fields":
		n.preserve, n.foreign = on, n.foreign || !on
	case "x-kubernetes-embedded-resource":
		n.embedded = on
	case "x-kubernetes-int-or-string":
		n.intOrString = on
	}
}
