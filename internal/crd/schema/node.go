package schema

// Node is the schema of one value. It holds every keyword of its JSON; the table keywords maps the names of the
// keywords to the fields. A Node is immutable.
type Node struct {
	Set         Keywords // the keywords in the JSON, also those with an empty value
	Types       TypeSet  // types that Type and IntOrString allow
	Type        string   // "object" for an embedded resource without a type
	Format      string
	Properties  map[string]*Node
	Additional  *AdditionalProperties // nil means that additionalProperties is not set
	Items       *Node
	Default     JSON // "" means no default
	ListType    string
	MapType     string
	ListMapKeys []string
	Nullable    bool
	Preserve    bool // x-kubernetes-preserve-unknown-fields
	Embedded    bool // x-kubernetes-embedded-resource
	IntOrString bool // x-kubernetes-int-or-string

	MaxLength, MaxItems, MaxProperties *int64
	Required                           []string
	Rules                              Rules // "" means no rules
	Description                        JSON  // a string
	Checks                             *Checks
	Rare                               *Rare

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

// Rare holds keywords that do not affect objects. Structural schemas have only the first three.
type Rare struct {
	Title             string
	ExternalDocs      docs
	Example           JSON
	UniqueItems       bool
	ID, Schema, Ref   string
	Definitions       map[string]*Node
	PatternProperties map[string]*Node
	Dependencies      map[string]*Dependency
	AdditionalItems   *AdditionalProperties
	ItemSchemas       []*Node // items, if it is a list of schemas
}

// keywords lists all keywords. A new keyword needs a row here, a field of Node, and code that uses the field.
var keywords = []keyword{
	{"$ref", func(n *Node) any { return (*optionalText)(&n.ensureRare().Ref) }},
	{"$schema", func(n *Node) any { return &n.ensureRare().Schema }},
	{"additionalItems", func(n *Node) any { return &n.ensureRare().AdditionalItems }},
	{"additionalProperties", func(n *Node) any { return &n.Additional }},
	{"allOf", func(n *Node) any { return &n.EnsureChecks().AllOf }},
	{"anyOf", func(n *Node) any { return &n.EnsureChecks().AnyOf }},
	{"default", func(n *Node) any { return &n.Default }},
	{"definitions", func(n *Node) any { return &n.ensureRare().Definitions }},
	{"dependencies", func(n *Node) any { return &n.ensureRare().Dependencies }},
	{"description", func(n *Node) any { return (*copiedText)(&n.Description) }},
	{"enum", func(n *Node) any { return &n.EnsureChecks().Enum }},
	{"example", func(n *Node) any { return &n.ensureRare().Example }},
	{"exclusiveMaximum", func(n *Node) any { return &n.EnsureChecks().ExclusiveMaximum }},
	{"exclusiveMinimum", func(n *Node) any { return &n.EnsureChecks().ExclusiveMinimum }},
	{"externalDocs", func(n *Node) any { return &n.ensureRare().ExternalDocs }},
	{"format", func(n *Node) any { return &n.Format }},
	{"id", func(n *Node) any { return &n.ensureRare().ID }},
	{"items", func(n *Node) any { return (*items)(n) }},
	{"maxItems", func(n *Node) any { return &n.MaxItems }},
	{"maxLength", func(n *Node) any { return &n.MaxLength }},
	{"maxProperties", func(n *Node) any { return &n.MaxProperties }},
	{"maximum", func(n *Node) any { return &n.EnsureChecks().Maximum }},
	{"minItems", func(n *Node) any { return &n.EnsureChecks().MinItems }},
	{"minLength", func(n *Node) any { return &n.EnsureChecks().MinLength }},
	{"minProperties", func(n *Node) any { return &n.EnsureChecks().MinProperties }},
	{"minimum", func(n *Node) any { return &n.EnsureChecks().Minimum }},
	{"multipleOf", func(n *Node) any { return &n.EnsureChecks().MultipleOf }},
	{"not", func(n *Node) any { return &n.EnsureChecks().Not }},
	{"nullable", func(n *Node) any { return &n.Nullable }},
	{"oneOf", func(n *Node) any { return &n.EnsureChecks().OneOf }},
	{"pattern", func(n *Node) any { return &n.EnsureChecks().Pattern }},
	{"patternProperties", func(n *Node) any { return &n.ensureRare().PatternProperties }},
	{"properties", func(n *Node) any { return &n.Properties }},
	{"required", func(n *Node) any { return &n.Required }},
	{"title", func(n *Node) any { return &n.ensureRare().Title }},
	{"type", func(n *Node) any { return &n.Type }},
	{"uniqueItems", func(n *Node) any { return &n.ensureRare().UniqueItems }},
	{"x-kubernetes-embedded-resource", func(n *Node) any { return &n.Embedded }},
	{"x-kubernetes-int-or-string", func(n *Node) any { return &n.IntOrString }},
	{"x-kubernetes-list-map-keys", func(n *Node) any { return &n.ListMapKeys }},
	{"x-kubernetes-list-type", func(n *Node) any { return (*optionalText)(&n.ListType) }},
	{"x-kubernetes-map-type", func(n *Node) any { return (*optionalText)(&n.MapType) }},
	{"x-kubernetes-preserve-unknown-fields", func(n *Node) any { return (*optionalFlag)(&n.Preserve) }},
	{"x-kubernetes-validations", func(n *Node) any { return &n.Rules }},
}

// JSON is the JSON of a value that the schema does not interpret. "" means that there is no value.
type JSON string

// docs is the JSON of externalDocs.
type docs JSON

// AdditionalProperties is the value of additionalProperties, which is a schema or a boolean.
type AdditionalProperties struct {
	Schema *Node
	Allows bool
}

// Dependency is an entry of dependencies, which is a schema or a list of names.
type Dependency struct {
	Schema *Node
	Names  JSON
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

// none replaces a missing Checks or Rare.
var (
	noChecks = &Checks{}
	noRare   = &Rare{}
)

// Checked returns the validation keywords of n. The caller must not modify them.
func (n *Node) Checked() *Checks {
	if n.Checks == nil {
		return noChecks
	}
	return n.Checks
}

// Others returns the keywords of n that do not affect objects. The caller must not modify them.
func (n *Node) Others() *Rare {
	if n.Rare == nil {
		return noRare
	}
	return n.Rare
}

// EnsureChecks returns the checks of n, which it creates if necessary.
func (n *Node) EnsureChecks() *Checks {
	if n.Checks == nil {
		n.Checks = &Checks{}
	}
	return n.Checks
}

func (n *Node) ensureRare() *Rare {
	if n.Rare == nil {
		n.Rare = &Rare{}
	}
	return n.Rare
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

// HasRules reports whether there are rules at or below n, which may be nil.
func (n *Node) HasRules() bool { return n.Has(withRules) }

// WrittenType returns the type in the JSON.
func (n *Node) WrittenType() string {
	if n.Set&typeKeyword == 0 {
		return ""
	}
	return n.Type
}

var typeKeyword = SetOf("type")

// IsTypeOrMeta reports whether key is a field that every object has, except for its data.
func IsTypeOrMeta(key string) bool {
	return key == "metadata" || key == "kind" || key == "apiVersion"
}
