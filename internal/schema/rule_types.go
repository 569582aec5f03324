package schema

import (
	"maps"
	"strings"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/util/validation"
	apicel "k8s.io/apiserver/pkg/cel"

	"github.com/trellis-k8s/trellis/internal/object"
)

// The types in rules equal the types that k8s.io/apiserver/pkg/cel/common.SchemaDeclType returns. They are created
// when an expression uses them, because expressions use only few fields of a large schema.

// maxRequest is the maximum size of a request. Cost estimates depend on it.
const maxRequest = apicel.DefaultMaxRequestSizeBytes

// scope provides the types of self and of the values below self to the checker. It records the lookups of the
// checker. It must be used by one goroutine only.
type scope struct {
	*apicel.DeclTypeProvider // scalars and the types of every environment
	language                 *language
	self                     *types.Type
	objectNodes              map[string]*node
	lookups                  []lookup
	checkers                 [2]*checker.Env // checkers[1] declares oldSelf as optional
}

// lookup records that the checker has looked up a field of a type. typ is the type of the field, or nil if the field
// does not exist.
type lookup struct {
	name, field string
	typ         *types.Type
}

func newScope(l *language, self *node, name string) *scope {
	s := &scope{DeclTypeProvider: l.scalars, language: l, objectNodes: map[string]*node{}}
	s.self = s.typeOf(self, name)
	return s
}

// resolvesSame reports whether the given lookups would have the same results in s.
func (s *scope) resolvesSame(lookups []lookup) bool {
	for _, l := range lookups {
		t := s.fieldType(l.name, l.field)
		if (t == nil) != (l.typ == nil) || t != nil && !t.IsExactType(l.typ) {
			return false
		}
	}
	return true
}

// checker returns an environment that declares self and oldSelf. If optional is true, oldSelf has an optional type.
func (s *scope) checker(optional bool) (*checker.Env, error) {
	i, old := 0, s.self
	if optional {
		i, old = 1, types.NewOptionalType(s.self)
	}
	if s.checkers[i] == nil {
		chk, err := checker.NewEnv(s.language.env.Container, s, checker.CrossTypeNumericComparisons(true),
			checker.ValidatedDeclarations(s.language.declared))
		if err != nil {
			return nil, err
		}
		if err := chk.AddIdents(decls.NewVariable(selfVar, s.self), decls.NewVariable(oldSelfVar, old)); err != nil {
			return nil, err
		}
		s.checkers[i] = chk
	}
	return s.checkers[i], nil
}

// typeOf returns the type of the values of n. n must not be hidden from CEL. The names of object types in the result
// begin with name.
func (s *scope) typeOf(n *node, name string) *types.Type {
	switch {
	case n.intOrString:
		return types.DynType
	case n.isMap():
		return types.NewMapType(types.StringType, s.typeOf(n.element(), name+".@elem"))
	}
	switch n.typ {
	case "array":
		return types.NewListType(s.typeOf(n.element(), name+".@idx"))
	case "object":
		s.objectNodes[name] = n
		return types.NewObjectType(name)
	case "boolean":
		return types.BoolType
	case "number":
		return types.DoubleType
	case "integer":
		return types.IntType
	}
	switch n.format {
	case "byte":
		return types.BytesType
	case "duration":
		return types.DurationType
	case "date", "date-time":
		return types.TimestampType
	}
	return types.StringType
}

// FindStructType implements types.Provider.
func (s *scope) FindStructType(name string) (*types.Type, bool) {
	if _, ok := s.objectNodes[name]; ok {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return s.DeclTypeProvider.FindStructType(name)
}

// FindStructFieldType implements types.Provider.
func (s *scope) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if _, ok := s.objectNodes[name]; !ok {
		return s.DeclTypeProvider.FindStructFieldType(name, field)
	}
	t := s.fieldType(name, field)
	s.lookups = append(s.lookups, lookup{name, field, t})
	return &types.FieldType{Type: t}, t != nil
}

// fieldType returns the type of a field, or nil if the field does not exist. It also finds a field by a CEL keyword
// that is not escaped.
func (s *scope) fieldType(name, field string) *types.Type {
	n := s.objectNodes[name]
	if n == nil {
		return nil
	}
	f := n.field(field)
	if f == nil {
		field = "__" + field + "__"
		if raw, ok := apicel.Unescape(field); !ok || len(raw)+4 != len(field) {
			return nil
		}
		if f = n.field(field); f == nil {
			return nil
		}
	}
	return s.typeOf(f, name+"."+field)
}

// hiddenFromCEL reports whether the type of the values of n is unknown. Rules cannot access such values.
func (n *node) hiddenFromCEL() bool {
	switch {
	case n == nil:
		return true
	case n.intOrString:
		return false
	case n.isMap():
		return n.additional.schema.hiddenFromCEL()
	}
	switch n.typ {
	case "array":
		return n.items.hiddenFromCEL()
	case "object", "string", "boolean", "number", "integer":
		return false
	}
	return true
}

func (n *node) isMap() bool {
	return n != nil && n.typ == "object" && n.additional != nil && n.additional.schema != nil && !n.intOrString
}

// element returns the schema of the items of a list or of the values of a map, as rules see it. It returns nil if n
// is neither.
func (n *node) element() *node {
	switch {
	case n == nil || n.intOrString:
		return nil
	case n.isMap():
		return celNodeOf(n.additional.schema)
	case n.typ == "array":
		return celNodeOf(n.items)
	}
	return nil
}

// celNodeOf returns n as rules see it, or nil if rules cannot access values of n.
func celNodeOf(n *node) *node {
	if n.hiddenFromCEL() {
		return nil
	}
	return n.asCELNode()
}

// field returns the schema of the field that has the given name in expressions. It returns nil if rules cannot access
// the field.
func (n *node) field(name string) *node {
	if n.typ != "object" || n.intOrString || n.isMap() {
		return nil
	}
	raw := name
	if strings.Contains(name, "__") {
		var ok bool
		if raw, ok = apicel.Unescape(name); !ok {
			return nil
		}
	}
	child := n.properties[raw]
	if escaped, ok := apicel.Escape(raw); !ok || escaped != name || child.hiddenFromCEL() {
		return nil
	}
	return child.asCELNode()
}

// asCELNode returns n as rules see it.
func (n *node) asCELNode() *node {
	if n == nil || !n.embedded || n.intOrString {
		return n
	}
	return n.asResource()
}

// asResource returns n with the fields that rules can access in every object: apiVersion, kind, metadata.name and
// metadata.generateName.
func (n *node) asResource() *node {
	isString := func(n *node) bool { return n != nil && n.typ == "string" }
	md := n.properties["metadata"]
	if isString(n.properties["kind"]) && isString(n.properties["apiVersion"]) && md != nil && md.typ == "object" &&
		isString(md.properties["name"]) && isString(md.properties["generateName"]) {
		return n
	}
	out := *n
	out.properties = maps.Clone(n.properties)
	if out.properties == nil {
		out.properties = map[string]*node{}
	}
	if md == nil {
		md = &node{}
	}
	const longest = int64(validation.DNS1123SubdomainMaxLength)
	out.properties["kind"] = &node{typ: "string"}
	out.properties["apiVersion"] = &node{typ: "string"}
	out.properties["metadata"] = &node{typ: "object", properties: map[string]*node{
		"name": boundedString(md.properties["name"], longest),
		// the server appends at least one character to generateName
		"generateName": boundedString(md.properties["generateName"], longest-1),
	}}
	return &out
}

// boundedString returns the schema of a string with at most max characters. A lower maximum in n takes precedence.
func boundedString(n *node, max int64) *node {
	if n != nil {
		if limit := n.effectiveMaxLength(); limit != nil && *limit < max {
			max = *limit
		}
	}
	return &node{typ: "string", maxLength: &max}
}

// The following methods return the lowest bound in the keywords of n itself and in allOf. nil means unbounded.
// Upstream ignores allOf, although controller-gen writes bounds there (kubernetes#139523).
func (n *node) effectiveMaxLength() *int64 {
	return n.lowestBound(func(n *node) *int64 { return n.maxLength })
}
func (n *node) effectiveMaxItems() *int64 {
	return n.lowestBound(func(n *node) *int64 { return n.maxItems })
}
func (n *node) effectiveMaxProperties() *int64 {
	return n.lowestBound(func(n *node) *int64 { return n.maxProperties })
}

func (n *node) lowestBound(own func(*node) *int64) *int64 {
	least := own(n)
	if n.checks == nil {
		return least
	}
	for _, part := range n.checks.allOf {
		if b := part.lowestBound(own); b != nil && (least == nil || *b < *least) {
			least = b
		}
	}
	return least
}

// maxSize returns the maximum size of a value of n: the number of bytes of a string, items of a list or entries of a
// map. It returns 0 for other types.
func (n *node) maxSize() int64 {
	switch {
	case n.intOrString:
		if most := n.effectiveMaxLength(); most != nil {
			return 4 * max(0, *most)
		}
		return maxRequest - len64(`""`)
	case n.isMap():
		if most := n.effectiveMaxProperties(); most != nil {
			return max(0, *most)
		}
		// as in upstream, which counts one byte too many
		return (maxRequest - len64(`{}`)) / (n.element().minJSONSize() + len64(`"k":,`) + 1)
	case n.typ == "array":
		if most := n.effectiveMaxItems(); most != nil {
			return max(0, *most)
		}
		return (maxRequest - len64(`[]`)) / (n.element().minJSONSize() + len64(`,`))
	case n.typ == "string":
		return n.maxStringSize()
	}
	return 0
}

// maxStringSize counts bytes. A character has up to four bytes.
func (n *node) maxStringSize() int64 {
	switch n.format {
	case "duration":
		return apicel.MaxDurationSizeJSON
	case "date":
		return apicel.JSONDateSize
	case "date-time":
		return apicel.MaxDatetimeSizeJSON
	}
	switch most := n.effectiveMaxLength(); {
	case most != nil && n.format == "byte":
		return max(0, *most)
	case most != nil:
		return 4 * max(0, *most)
	case n.enum == "" || n.format == "byte":
		return maxRequest - len64(`""`)
	}
	longest := int64(0)
	c := object.NewCursor([]byte(n.enum))
	c.Elements(func(int) {
		if c.Kind() == '"' {
			longest = max(longest, len64(c.Text()))
		}
	})
	return longest
}

// minJSONSize returns the minimum size of the JSON of a value of n.
func (n *node) minJSONSize() int64 {
	if n.intOrString {
		return 1
	}
	switch n.typ {
	case "boolean":
		return apicel.MinBoolSize
	case "number", "integer":
		return apicel.MinNumberSize
	case "object":
		if !n.isMap() {
			return n.minObjectJSONSize()
		}
	case "string":
		switch n.format {
		case "duration":
			return apicel.MinDurationSizeJSON
		case "date":
			return apicel.JSONDateSize
		case "date-time":
			return apicel.MinDatetimeSizeJSON
		}
	}
	return 2
}

// minObjectJSONSize returns the minimum size of the JSON of an object. It counts only the fields that clients cannot
// omit.
func (n *node) minObjectJSONSize() int64 {
	size, seen := len64(`{}`), map[string]bool{}
	for _, name := range n.required {
		child := n.properties[name]
		if !seen[name] && !child.hiddenFromCEL() && child.defaultJSON == "" {
			size += len64(name) + child.asCELNode().minJSONSize() + len64(`"":,`)
		}
		seen[name] = true
	}
	return size
}

func len64(s string) int64 { return int64(len(s)) }
