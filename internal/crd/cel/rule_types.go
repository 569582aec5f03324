package cel

import (
	"maps"
	"strings"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/util/validation"
	apicel "k8s.io/apiserver/pkg/cel"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
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
	objectNodes              map[string]*schema.Node
	lookups                  []lookup
	checkers                 [2]*checker.Env // checkers[1] declares oldSelf as optional
}

// lookup records that the checker has looked up a field of a type. typ is the type of the field, or nil if the field
// does not exist.
type lookup struct {
	name, field string
	typ         *types.Type
}

func newScope(l *language, self *schema.Node, name string) *scope {
	s := &scope{DeclTypeProvider: l.scalars, language: l, objectNodes: map[string]*schema.Node{}}
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
func (s *scope) typeOf(n *schema.Node, name string) *types.Type {
	switch {
	case n.IntOrString:
		return types.DynType
	case isMap(n):
		return types.NewMapType(types.StringType, s.typeOf(elementNode(n), name+".@elem"))
	}
	switch n.Type {
	case "array":
		return types.NewListType(s.typeOf(elementNode(n), name+".@idx"))
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
	switch n.Format {
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
	f := fieldNode(n, field)
	if f == nil {
		field = "__" + field + "__"
		if raw, ok := apicel.Unescape(field); !ok || len(raw)+4 != len(field) {
			return nil
		}
		if f = fieldNode(n, field); f == nil {
			return nil
		}
	}
	return s.typeOf(f, name+"."+field)
}

// hiddenFromCEL reports whether the type of the values of n is unknown. Rules cannot access such values.
func hiddenFromCEL(n *schema.Node) bool {
	switch {
	case n == nil:
		return true
	case n.IntOrString:
		return false
	case isMap(n):
		return hiddenFromCEL(n.Additional.Schema)
	}
	switch n.Type {
	case "array":
		return hiddenFromCEL(n.Items)
	case "object", "string", "boolean", "number", "integer":
		return false
	}
	return true
}

func isMap(n *schema.Node) bool {
	return n != nil && n.Type == "object" && n.Additional != nil && n.Additional.Schema != nil && !n.IntOrString
}

// elementNode returns the schema of the items of a list or of the values of a map, as rules see it. It returns nil if n
// is neither.
func elementNode(n *schema.Node) *schema.Node {
	switch {
	case n == nil || n.IntOrString:
		return nil
	case isMap(n):
		return celNodeOf(n.Additional.Schema)
	case n.Type == "array":
		return celNodeOf(n.Items)
	}
	return nil
}

// celNodeOf returns n as rules see it, or nil if rules cannot access values of n.
func celNodeOf(n *schema.Node) *schema.Node {
	if hiddenFromCEL(n) {
		return nil
	}
	return asCELNode(n)
}

// fieldNode returns the schema of the field that has the given name in expressions. It returns nil if rules cannot
// access the field.
func fieldNode(n *schema.Node, name string) *schema.Node {
	if n.Type != "object" || n.IntOrString || isMap(n) {
		return nil
	}
	raw := name
	if strings.Contains(name, "__") {
		var ok bool
		if raw, ok = apicel.Unescape(name); !ok {
			return nil
		}
	}
	child := n.Properties[raw]
	if escaped, ok := apicel.Escape(raw); !ok || escaped != name || hiddenFromCEL(child) {
		return nil
	}
	return asCELNode(child)
}

// asCELNode returns n as rules see it.
func asCELNode(n *schema.Node) *schema.Node {
	if n == nil || !n.Embedded || n.IntOrString {
		return n
	}
	return asResource(n)
}

// asResource returns n with the fields that rules can access in every object: apiVersion, kind, metadata.name and
// metadata.generateName.
func asResource(n *schema.Node) *schema.Node {
	isString := func(n *schema.Node) bool { return n != nil && n.Type == "string" }
	md := n.Properties["metadata"]
	if isString(n.Properties["kind"]) && isString(n.Properties["apiVersion"]) && md != nil && md.Type == "object" &&
		isString(md.Properties["name"]) && isString(md.Properties["generateName"]) {
		return n
	}
	out := *n
	out.Properties = maps.Clone(n.Properties)
	if out.Properties == nil {
		out.Properties = map[string]*schema.Node{}
	}
	if md == nil {
		md = &schema.Node{}
	}
	const longest = int64(validation.DNS1123SubdomainMaxLength)
	out.Properties["kind"] = &schema.Node{Type: "string"}
	out.Properties["apiVersion"] = &schema.Node{Type: "string"}
	out.Properties["metadata"] = &schema.Node{Type: "object", Properties: map[string]*schema.Node{
		"name": boundedString(md.Properties["name"], longest),
		// the server appends at least one character to generateName
		"generateName": boundedString(md.Properties["generateName"], longest-1),
	}}
	return &out
}

// boundedString returns the schema of a string with at most max characters. A lower maximum in n takes precedence.
func boundedString(n *schema.Node, max int64) *schema.Node {
	if n != nil {
		if limit := effectiveMaxLength(n); limit != nil && *limit < max {
			max = *limit
		}
	}
	return &schema.Node{Type: "string", MaxLength: &max}
}

// The following methods return the lowest bound in the keywords of n itself and in allOf. nil means unbounded.
// Upstream ignores allOf, although controller-gen writes bounds there (kubernetes#139523).
func effectiveMaxLength(n *schema.Node) *int64 {
	return lowestBound(n, func(n *schema.Node) *int64 { return n.MaxLength })
}
func effectiveMaxItems(n *schema.Node) *int64 {
	return lowestBound(n, func(n *schema.Node) *int64 { return n.MaxItems })
}
func effectiveMaxProperties(n *schema.Node) *int64 {
	return lowestBound(n, func(n *schema.Node) *int64 { return n.MaxProperties })
}

func lowestBound(n *schema.Node, own func(*schema.Node) *int64) *int64 {
	least := own(n)
	if n.Checks == nil {
		return least
	}
	for _, part := range n.Checks.AllOf {
		if b := lowestBound(part, own); b != nil && (least == nil || *b < *least) {
			least = b
		}
	}
	return least
}

// maxSize returns the maximum size of a value of n: the number of bytes of a string, items of a list or entries of a
// map. It returns 0 for other types.
func maxSize(n *schema.Node) int64 {
	switch {
	case n.IntOrString:
		if most := effectiveMaxLength(n); most != nil {
			return 4 * max(0, *most)
		}
		return maxRequest - len64(`""`)
	case isMap(n):
		if most := effectiveMaxProperties(n); most != nil {
			return max(0, *most)
		}
		// as in upstream, which counts one byte too many
		return (maxRequest - len64(`{}`)) / (minJSONSize(elementNode(n)) + len64(`"k":,`) + 1)
	case n.Type == "array":
		if most := effectiveMaxItems(n); most != nil {
			return max(0, *most)
		}
		return (maxRequest - len64(`[]`)) / (minJSONSize(elementNode(n)) + len64(`,`))
	case n.Type == "string":
		return maxStringSize(n)
	}
	return 0
}

// maxStringSize counts bytes. A character has up to four bytes.
func maxStringSize(n *schema.Node) int64 {
	switch n.Format {
	case "duration":
		return apicel.MaxDurationSizeJSON
	case "date":
		return apicel.JSONDateSize
	case "date-time":
		return apicel.MaxDatetimeSizeJSON
	}
	switch most := effectiveMaxLength(n); {
	case most != nil && n.Format == "byte":
		return max(0, *most)
	case most != nil:
		return 4 * max(0, *most)
	case n.Checked().Enum == nil || n.Format == "byte":
		return maxRequest - len64(`""`)
	}
	longest := int64(0)
	c := object.NewCursor([]byte(n.Checks.Enum.Text))
	c.Elements(func(int) {
		if c.Kind() == '"' {
			longest = max(longest, len64(c.Text()))
		}
	})
	return longest
}

// minJSONSize returns the minimum size of the JSON of a value of n.
func minJSONSize(n *schema.Node) int64 {
	if n.IntOrString {
		return 1
	}
	switch n.Type {
	case "boolean":
		return apicel.MinBoolSize
	case "number", "integer":
		return apicel.MinNumberSize
	case "object":
		if !isMap(n) {
			return minObjectJSONSize(n)
		}
	case "string":
		switch n.Format {
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
func minObjectJSONSize(n *schema.Node) int64 {
	size, seen := len64(`{}`), map[string]bool{}
	for _, name := range n.Required {
		child := n.Properties[name]
		if !seen[name] && !hiddenFromCEL(child) && child.Default == "" {
			size += len64(name) + minJSONSize(asCELNode(child)) + len64(`"":,`)
		}
		seen[name] = true
	}
	return size
}

func len64(s string) int64 { return int64(len(s)) }
