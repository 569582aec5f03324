package schema

import (
	"encoding/binary"
	"hash"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
)

// node is the schema of one value.
type node struct {
	types       typeSet // types that typ and intOrString allow
	typ         string
	format      string
	properties  map[string]*node
	additional  *additional // nil means that additionalProperties is not set
	items       *node
	defaultJSON string // "" means no default
	listType    string
	mapType     string
	listKeys    []string
	nullable    bool
	preserve    bool // x-kubernetes-preserve-unknown-fields
	embedded    bool // x-kubernetes-embedded-resource
	intOrString bool // x-kubernetes-int-or-string

	maxLength, maxItems, maxProperties *int64
	required                           []string
	enum                               string // JSON array; "" means no enum
	rules                              string // JSON of x-kubernetes-validations; "" means no rules
	anyRules                           bool   // there are rules at or below the node
	checks                             *checks

	traits       traits        // traits of the node and of all nodes below it
	nodeDefaults *nodeDefaults // defaults at and below the node; nil before the first use
}

// checks holds validation keywords that few nodes have. They are separate because pruning, defaulting and CEL types
// do not use them.
type checks struct {
	minLength, minItems, minProperties *int64
	minimum, maximum, multipleOf       *float64
	exclusiveMinimum, exclusiveMaximum bool
	format                             format
	pattern                            *pattern
	enum                               *enumeration
	allOf, anyOf, oneOf                []*node
	not                                *node
}

// additional is the value of additionalProperties, which is a schema or a boolean.
type additional struct {
	schema *node
	allows bool
}

// reader reads the nodes of one schema and shares equal patterns among them.
type reader struct {
	*object.Cursor
	patterns map[string]*pattern
}

// node reads the schema at the cursor. It returns nil if the value is not an object.
func (r *reader) node() *node {
	if r.Kind() != '{' {
		return nil
	}
	n := &node{}
	r.Members(func(key string) {
		if !n.readStructure(r, key) && !n.readLimit(r, key) {
			n.readCheck(r, key)
		}
	})
	if n.embedded && n.typ == "" && !n.intOrString {
		n.typ = "object" // upstream requires an explicit type
	}
	n.types = typesOf(n)
	if f := formatOf(n); f != 0 {
		n.ensureChecks().format = f
	}
	n.anyRules = n.rules != "" || n.items.hasRules() || n.additional != nil && n.additional.schema.hasRules()
	for _, child := range n.properties {
		n.anyRules = n.anyRules || child.anyRules
	}
	return n
}

func (n *node) hasRules() bool { return n != nil && n.anyRules }

// ensureChecks returns the checks of n, which it creates if necessary.
func (n *node) ensureChecks() *checks {
	if n.checks == nil {
		n.checks = &checks{}
	}
	return n.checks
}

// readStructure reads the keywords for pruning, defaulting and publishing. It returns false for other keywords.
func (n *node) readStructure(c *reader, key string) bool {
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
		n.items = c.node()
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
	case "x-kubernetes-list-type":
		n.listType = c.Text()
	case "x-kubernetes-map-type":
		n.mapType = c.Text()
	case "x-kubernetes-list-map-keys":
		n.listKeys = c.Texts()
	default:
		return false
	}
	return true
}

// readLimit reads the other keywords that CEL's cost estimates use. It returns false for other keywords.
func (n *node) readLimit(c *reader, key string) bool {
	switch key {
	case "maxLength":
		n.maxLength = limit(c)
	case "maxItems":
		n.maxItems = limit(c)
	case "maxProperties":
		n.maxProperties = limit(c)
	case "required":
		n.required = c.Texts()
	case "enum":
		if n.enum = list(c); n.enum != "" {
			n.ensureChecks().enum = &enumeration{text: n.enum}
		}
	case "x-kubernetes-validations":
		n.rules = list(c)
	default:
		return false
	}
	return true
}

func (n *node) readCheck(c *reader, key string) {
	switch key {
	case "minLength":
		n.ensureChecks().minLength = limit(c)
	case "minItems":
		n.ensureChecks().minItems = limit(c)
	case "minProperties":
		n.ensureChecks().minProperties = limit(c)
	case "minimum":
		n.ensureChecks().minimum = float(c)
	case "maximum":
		n.ensureChecks().maximum = float(c)
	case "multipleOf":
		n.ensureChecks().multipleOf = float(c)
	case "exclusiveMinimum":
		n.ensureChecks().exclusiveMinimum = c.Bool()
	case "exclusiveMaximum":
		n.ensureChecks().exclusiveMaximum = c.Bool()
	case "pattern":
		n.ensureChecks().pattern = c.pattern(c.Text())
	case "allOf":
		n.ensureChecks().allOf = c.nodes()
	case "anyOf":
		n.ensureChecks().anyOf = c.nodes()
	case "oneOf":
		n.ensureChecks().oneOf = c.nodes()
	case "not":
		n.ensureChecks().not = c.node()
	}
}

// nodes reads a list of schemas. A null item allows every value.
func (r *reader) nodes() (list []*node) {
	r.Elements(func(int) {
		n := r.node()
		if n == nil {
			n = &node{}
		}
		list = append(list, n)
	})
	return list
}

func (r *reader) pattern(text string) *pattern {
	if text == "" {
		return nil
	}
	p := r.patterns[text]
	if p == nil {
		if r.patterns == nil {
			r.patterns = map[string]*pattern{}
		}
		p = &pattern{text: text}
		r.patterns[text] = p
	}
	return p
}

// limit reads an integer, or nil for null.
func limit(c *reader) *int64 {
	if c.Kind() == 'n' {
		return nil
	}
	max := c.Int()
	return &max
}

// float reads a number, or nil for any other value.
func float(c *reader) *float64 {
	v, err := strconv.ParseFloat(c.Raw(), 64)
	if err != nil {
		return nil
	}
	return &v
}

// list returns the JSON of a non-empty array, or "".
func list(c *reader) string {
	raw := c.Raw()
	if inner, ok := strings.CutPrefix(raw, "["); !ok || strings.TrimSpace(inner) == "]" {
		return ""
	}
	return raw
}

func (n *node) readProperties(c *reader) {
	if c.Kind() == '{' {
		n.properties = map[string]*node{}
	}
	c.Members(func(name string) {
		if child := c.node(); child != nil {
			n.properties[name] = child
		}
	})
}

func (n *node) readAdditional(c *reader) {
	switch c.Kind() {
	case '{':
		n.additional = &additional{schema: c.node(), allows: true}
	case 't':
		n.additional = &additional{allows: true}
	case 'f':
		n.additional = &additional{}
	}
}

// fingerprint adds the keywords that affect pruning and defaulting to a hash, in a fixed order.
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
