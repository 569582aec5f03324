package schema

import (
	"encoding/binary"
	"hash"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/trellis-k8s/trellis/internal/object"
)

// node is what the schema says of one value. Defaulting and validation
// belong here too: a field each, read in readNode, and their part of the walk.
type node struct {
	typ         string
	format      string
	properties  map[string]*node
	additional  *additional // nil where additionalProperties is not given
	items       *node
	defaultJSON string // "" where there is none
	listType    string
	mapType     string
	listKeys    []string
	nullable    bool
	preserve    bool // x-kubernetes-preserve-unknown-fields
	embedded    bool // x-kubernetes-embedded-resource
	intOrString bool // x-kubernetes-int-or-string

	maxLength, maxItems, maxProperties *int64
	required                           []string
	enum                               string // the JSON of the list, "" where there is none
	rules                              string // the JSON of x-kubernetes-validations, "" where there are none
	anyRules                           bool   // here or below
}

// additional is additionalProperties: a schema, or only allows.
type additional struct {
	schema *node
	allows bool
}

// readNode reads the schema at the cursor; nil if it is not an object.
func readNode(c *object.Cursor) *node {
	if c.Kind() != '{' {
		return nil
	}
	n := &node{}
	c.Members(func(key string) { n.read(c, key) })
	n.anyRules = n.rules != "" || n.items.hasRules() || n.additional != nil && n.additional.schema.hasRules()
	for _, child := range n.properties {
		n.anyRules = n.anyRules || child.anyRules
	}
	return n
}

func (n *node) hasRules() bool { return n != nil && n.anyRules }

func (n *node) read(c *object.Cursor, key string) {
	switch key {
	case "type":
		n.typ = c.Text()
	case "format":
		n.format = c.Text()
	case "properties":
		n.readProperties(c)
	case "additionalProperties":
		n.readAdditional(c)
	case "items":
		n.items = readNode(c)
	case "default":
		if raw := c.Raw(); raw != "null" {
			n.defaultJSON = raw
		}
	case "nullable":
		n.nullable = c.Bool()
	case "x-kubernetes-preserve-unknown-fields":
		n.preserve = c.Bool()
	case "x-kubernetes-embedded-resource":
		n.embedded = c.Bool()
	case "x-kubernetes-int-or-string":
		n.intOrString = c.Bool()
	case "maxLength":
		n.maxLength = limit(c)
	case "maxItems":
		n.maxItems = limit(c)
	case "maxProperties":
		n.maxProperties = limit(c)
	case "required":
		n.required = c.Texts()
	case "enum":
		n.enum = list(c)
	case "x-kubernetes-validations":
		n.rules = list(c)
	case "x-kubernetes-list-type":
		n.listType = c.Text()
	case "x-kubernetes-map-type":
		n.mapType = c.Text()
	case "x-kubernetes-list-map-keys":
		n.listKeys = c.Texts()
	}
}

// limit reads a number; nil for null.
func limit(c *object.Cursor) *int64 {
	if c.Kind() == 'n' {
		return nil
	}
	max := c.Int()
	return &max
}

// list is the JSON of an array that has something in it.
func list(c *object.Cursor) string {
	if raw := c.Raw(); len(raw) > len("[]") && raw[0] == '[' {
		return raw
	}
	return ""
}

func (n *node) readProperties(c *object.Cursor) {
	if c.Kind() == '{' {
		n.properties = map[string]*node{}
	}
	c.Members(func(name string) {
		if child := readNode(c); child != nil {
			n.properties[name] = child
		}
	})
}

func (n *node) readAdditional(c *object.Cursor) {
	switch c.Kind() {
	case '{':
		n.additional = &additional{schema: readNode(c), allows: true}
	case 't':
		n.additional = &additional{allows: true}
	case 'f':
		n.additional = &additional{}
	}
}

// fingerprint hashes what decides over pruning and defaulting, in an order of its own.
func (n *node) fingerprint(preserveUnknownFields bool) uint64 {
	p := printer{fnv.New64a()}
	p.flags(preserveUnknownFields)
	p.node(n)
	return p.Sum64()
}

type printer struct{ hash.Hash64 }

func (p printer) flags(flags ...bool) {
	b := byte(0x80)
	for i, set := range flags {
		if set {
			b |= 1 << i
		}
	}
	_, _ = p.Write([]byte{b})
}

func (p printer) text(s string) {
	var length [4]byte
	binary.LittleEndian.PutUint32(length[:], uint32(len(s)))
	_, _ = p.Write(length[:])
	_, _ = p.Write([]byte(s))
}

func (p printer) node(n *node) {
	p.flags(n != nil)
	if n == nil {
		return
	}
	p.flags(n.preserve, n.embedded, n.nullable, n.additional != nil)
	p.text(n.defaultJSON)
	p.node(n.items)
	if n.additional != nil {
		p.node(n.additional.schema)
	}
	for _, name := range slices.Sorted(maps.Keys(n.properties)) {
		p.text(name)
		p.node(n.properties[name])
	}
	p.flags()
}
