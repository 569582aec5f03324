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

// Node is the schema of one value.
type Node struct {
	Types       TypeSet // types that Type and IntOrString allow
	Type        string
	Format      string
	Properties  map[string]*Node
	Additional  *AdditionalProperties // nil means that additionalProperties is not set
	Items       *Node
	Default     string // "" means no default
	ListType    string
	MapType     string
	ListMapKeys []string
	Nullable    bool
	Preserve    bool // x-kubernetes-preserve-unknown-fields
	Embedded    bool // x-kubernetes-embedded-resource
	IntOrString bool // x-kubernetes-int-or-string

	MaxLength, MaxItems, MaxProperties *int64
	Required                           []string
	Enum                               string // JSON array; "" means no enum
	Rules                              string // JSON of x-kubernetes-validations; "" means no rules
	AnyRules                           bool   // there are rules at or below the node
	Checks                             *Checks

	Traits   traits        // traits of the node and of all nodes below it
	Defaults *NodeDefaults // defaults at and below the node; nil before the first use
}

// Checks holds validation keywords that few nodes have. They are separate because pruning, defaulting and CEL types
// do not use them.
type Checks struct {
	MinLength, MinItems, MinProperties *int64
	Minimum, Maximum, MultipleOf       *float64
	ExclusiveMinimum, ExclusiveMaximum bool
	Format                             format
	Pattern                            *Pattern
	Enum                               *Enumeration
	AllOf, AnyOf, OneOf                []*Node
	Not                                *Node
}

// AdditionalProperties is the value of additionalProperties, which is a schema or a boolean.
type AdditionalProperties struct {
	Schema *Node
	Allows bool
}

// NodeDefaults holds the defaults at and below a node. Package defaulting computes them.
type NodeDefaults struct {
	Value      any  // the default, after the defaults below it were filled in
	Discarded  bool // the default is not used, because normalization removes it completely
	Properties []DefaultedProperty
}

// DefaultedProperty is a property with a default at or below it.
type DefaultedProperty struct {
	Name string
	Node *Node
}

// Child returns the schema of the field name, or nil.
func (n *Node) Child(name string) *Node {
	if n == nil {
		return nil
	}
	if child, ok := n.Properties[name]; ok {
		return child
	}
	if n.Additional != nil {
		return n.Additional.Schema
	}
	return nil
}

// IsTypeOrMeta reports whether key is a field that every object has, except for its data.
func IsTypeOrMeta(key string) bool {
	return key == "metadata" || key == "kind" || key == "apiVersion"
}

// reader reads the nodes of one schema and shares equal patterns among them.
type reader struct {
	*object.Cursor
	patterns map[string]*Pattern
}

// Node reads the schema at the cursor. It returns nil if the value is not an object.
func (r *reader) node() *Node {
	if r.Kind() != '{' {
		return nil
	}
	n := &Node{}
	r.Members(func(key string) {
		if !n.readStructure(r, key) && !n.readLimit(r, key) {
			n.readCheck(r, key)
		}
	})
	if n.Embedded && n.Type == "" && !n.IntOrString {
		n.Type = "object" // upstream requires an explicit type
	}
	n.Types = TypesOf(n)
	if f := FormatOf(n); f != 0 {
		n.EnsureChecks().Format = f
	}
	n.AnyRules = n.Rules != "" || n.Items.HasRules() || n.Additional != nil && n.Additional.Schema.HasRules()
	for _, child := range n.Properties {
		n.AnyRules = n.AnyRules || child.AnyRules
	}
	return n
}

// HasRules reports whether there are rules at or below n, which may be nil.
func (n *Node) HasRules() bool { return n != nil && n.AnyRules }

// EnsureChecks returns the checks of n, which it creates if necessary.
func (n *Node) EnsureChecks() *Checks {
	if n.Checks == nil {
		n.Checks = &Checks{}
	}
	return n.Checks
}

// readStructure reads the keywords for pruning, defaulting and publishing. It returns false for other keywords.
func (n *Node) readStructure(c *reader, key string) bool {
	switch key {
	case "type":
		n.Type = c.Text()
	case "format":
		n.Format = c.Text()
	case "properties":
		n.readProperties(c)
	case "additionalProperties":
		n.readAdditional(c)
	case "items":
		n.Items = c.node()
	case "default":
		if raw := c.Raw(); raw != "null" {
			n.Default = raw
		}
	case "nullable":
		n.Nullable = c.Bool()
	case "x-kubernetes-preserve-unknown-fields":
		n.Preserve = c.Bool()
	case "x-kubernetes-embedded-resource":
		n.Embedded = c.Bool()
	case "x-kubernetes-int-or-string":
		n.IntOrString = c.Bool()
	case "x-kubernetes-list-type":
		n.ListType = c.Text()
	case "x-kubernetes-map-type":
		n.MapType = c.Text()
	case "x-kubernetes-list-map-keys":
		n.ListMapKeys = c.Texts()
	default:
		return false
	}
	return true
}

// readLimit reads the other keywords that CEL's cost estimates use. It returns false for other keywords.
func (n *Node) readLimit(c *reader, key string) bool {
	switch key {
	case "maxLength":
		n.MaxLength = limit(c)
	case "maxItems":
		n.MaxItems = limit(c)
	case "maxProperties":
		n.MaxProperties = limit(c)
	case "required":
		n.Required = c.Texts()
	case "enum":
		if n.Enum = list(c); n.Enum != "" {
			n.EnsureChecks().Enum = &Enumeration{Text: n.Enum}
		}
	case "x-kubernetes-validations":
		n.Rules = list(c)
	default:
		return false
	}
	return true
}

func (n *Node) readCheck(c *reader, key string) {
	switch key {
	case "minLength":
		n.EnsureChecks().MinLength = limit(c)
	case "minItems":
		n.EnsureChecks().MinItems = limit(c)
	case "minProperties":
		n.EnsureChecks().MinProperties = limit(c)
	case "minimum":
		n.EnsureChecks().Minimum = float(c)
	case "maximum":
		n.EnsureChecks().Maximum = float(c)
	case "multipleOf":
		n.EnsureChecks().MultipleOf = float(c)
	case "exclusiveMinimum":
		n.EnsureChecks().ExclusiveMinimum = c.Bool()
	case "exclusiveMaximum":
		n.EnsureChecks().ExclusiveMaximum = c.Bool()
	case "pattern":
		n.EnsureChecks().Pattern = c.pattern(c.Text())
	case "allOf":
		n.EnsureChecks().AllOf = c.nodes()
	case "anyOf":
		n.EnsureChecks().AnyOf = c.nodes()
	case "oneOf":
		n.EnsureChecks().OneOf = c.nodes()
	case "not":
		n.EnsureChecks().Not = c.node()
	}
}

// nodes reads a list of schemas. A null item allows every value.
func (r *reader) nodes() (list []*Node) {
	r.Elements(func(int) {
		n := r.node()
		if n == nil {
			n = &Node{}
		}
		list = append(list, n)
	})
	return list
}

func (r *reader) pattern(text string) *Pattern {
	if text == "" {
		return nil
	}
	p := r.patterns[text]
	if p == nil {
		if r.patterns == nil {
			r.patterns = map[string]*Pattern{}
		}
		p = &Pattern{Text: text}
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

func (n *Node) readProperties(c *reader) {
	if c.Kind() == '{' {
		n.Properties = map[string]*Node{}
	}
	c.Members(func(name string) {
		if child := c.node(); child != nil {
			n.Properties[name] = child
		}
	})
}

func (n *Node) readAdditional(c *reader) {
	switch c.Kind() {
	case '{':
		n.Additional = &AdditionalProperties{Schema: c.node(), Allows: true}
	case 't':
		n.Additional = &AdditionalProperties{Allows: true}
	case 'f':
		n.Additional = &AdditionalProperties{}
	}
}

// fingerprint adds the keywords that affect pruning and defaulting to a hash, in a fixed order.
func (n *Node) fingerprint(preserveUnknownFields bool) uint64 {
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

func (p printer) node(n *Node) {
	p.flags(n != nil)
	if n == nil {
		return
	}
	p.flags(n.Preserve, n.Embedded, n.Nullable, n.Additional != nil)
	p.text(n.Default)
	p.node(n.Items)
	if n.Additional != nil {
		p.node(n.Additional.Schema)
	}
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		p.text(name)
		p.node(n.Properties[name])
	}
	p.flags()
}
