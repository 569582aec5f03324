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

// The types that rules see are those of k8s.io/apiserver/pkg/cel/common.SchemaDeclType, but read
// from the nodes when an expression asks for one: most fields of a large schema never are.

// maxRequest is the size of a request that estimates take for the largest.
const maxRequest = apicel.DefaultMaxRequestSizeBytes

// scope has the types of self and what is below it, under the names that the checker
// knows them by, and remembers what was asked. It is for one goroutine.
type scope struct {
	*apicel.DeclTypeProvider // scalars, and what every environment has
	language                 *language
	self                     *types.Type
	named                    map[string]*node
	lookups                  []lookup
	checkers                 [2]*checker.Env // [1]: oldSelf is optional
}

// lookup is a field of a type that was asked for; there is none if its type is nil.
type lookup struct {
	name, field string
	typ         *types.Type
}

func newScope(l *language, self *node, name string) *scope {
	s := &scope{DeclTypeProvider: l.scalars, language: l, named: map[string]*node{}}
	s.self = s.typeOf(self, name)
	return s
}

// agrees reports whether the answers would be the same.
func (s *scope) agrees(lookups []lookup) bool {
	for _, l := range lookups {
		t := s.fieldType(l.name, l.field)
		if (t == nil) != (l.typ == nil) || t != nil && !t.IsExactType(l.typ) {
			return false
		}
	}
	return true
}

// checker declares self, and oldSelf, which may be optional.
func (s *scope) checker(optional bool) (*checker.Env, error) {
	i, old := 0, s.self
	if optional {
		i, old = 1, types.NewOptionalType(s.self)
	}
	if s.checkers[i] == nil {
		chk, err := checker.NewEnv(s.language.env.Container, s, checker.CrossTypeNumericComparisons(true), checker.ValidatedDeclarations(s.language.declared))
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

// typeOf is the type of the values of n, which must not be hidden. Objects in it get names that begin
// with name.
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
		s.named[name] = n
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
	if _, ok := s.named[name]; ok {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return s.DeclTypeProvider.FindStructType(name)
}

// FindStructFieldType implements types.Provider.
func (s *scope) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if _, ok := s.named[name]; !ok {
		return s.DeclTypeProvider.FindStructFieldType(name, field)
	}
	t := s.fieldType(name, field)
	s.lookups = append(s.lookups, lookup{name, field, t})
	return &types.FieldType{Type: t}, t != nil
}

// fieldType is nil where there is no such field. A keyword is found without its escapes too.
func (s *scope) fieldType(name, field string) *types.Type {
	n := s.named[name]
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

// hidden reports whether rules do not see values of n because nobody knows their type.
func (n *node) hidden() bool {
	switch {
	case n == nil:
		return true
	case n.intOrString:
		return false
	case n.isMap():
		return n.additional.schema.hidden()
	}
	switch n.typ {
	case "array":
		return n.items.hidden()
	case "object", "string", "boolean", "number", "integer":
		return false
	}
	return true
}

func (n *node) isMap() bool {
	return n != nil && n.typ == "object" && n.additional != nil && n.additional.schema != nil && !n.intOrString
}

// element is the node of what a list or a map holds, as rules see it; nil of anything else.
func (n *node) element() *node {
	switch {
	case n == nil || n.intOrString:
		return nil
	case n.isMap():
		return visible(n.additional.schema)
	case n.typ == "array":
		return visible(n.items)
	}
	return nil
}

// visible is n as rules see it; nil if they do not.
func visible(n *node) *node {
	if n.hidden() {
		return nil
	}
	return n.asSeen()
}

// field is the node of the field that expressions call name, as they see it; nil if they do not.
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
	if escaped, ok := apicel.Escape(raw); !ok || escaped != name || child.hidden() {
		return nil
	}
	return child.asSeen()
}

// asSeen is n as rules see it.
func (n *node) asSeen() *node {
	if n == nil || !n.embedded || n.intOrString {
		return n
	}
	return n.asResource()
}

// asResource is n with the fields that rules see of every object: apiVersion, kind,
// metadata.name and metadata.generateName.
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
		"name":         capped(md.properties["name"], longest),
		"generateName": capped(md.properties["generateName"], longest-1), // at least one character is added
	}}
	return &out
}

// capped is a string of at most max characters, or of what n says if that is less.
func capped(n *node, max int64) *node {
	if n != nil {
		if limit := n.mostCharacters(); limit != nil && *limit < max {
			max = *limit
		}
	}
	return &node{typ: "string", maxLength: &max}
}

// The bounds of a value, which its own keywords and those of allOf give; nil where there is none. Upstream reads the first alone, though
// controller-gen writes the others (kubernetes#139523).
func (n *node) mostCharacters() *int64 { return n.bound(func(n *node) *int64 { return n.maxLength }) }
func (n *node) mostItems() *int64      { return n.bound(func(n *node) *int64 { return n.maxItems }) }
func (n *node) mostProperties() *int64 {
	return n.bound(func(n *node) *int64 { return n.maxProperties })
}

func (n *node) bound(own func(*node) *int64) *int64 {
	least := own(n)
	if n.more == nil {
		return least
	}
	for _, part := range n.more.allOf {
		if b := part.bound(own); b != nil && (least == nil || *b < *least) {
			least = b
		}
	}
	return least
}

// longest is how many characters, bytes, items or entries a value of n can have; 0 where that
// means nothing.
func (n *node) longest() int64 {
	switch {
	case n.intOrString:
		if most := n.mostCharacters(); most != nil {
			return 4 * max(0, *most)
		}
		return maxRequest - len64(`""`)
	case n.isMap():
		if most := n.mostProperties(); most != nil {
			return max(0, *most)
		}
		return (maxRequest - len64(`{}`)) / (n.element().smallest() + len64(`"k":,`) + 1) // upstream counts one more
	case n.typ == "array":
		if most := n.mostItems(); most != nil {
			return max(0, *most)
		}
		return (maxRequest - len64(`[]`)) / (n.element().smallest() + len64(`,`))
	case n.typ == "string":
		return n.longestString()
	}
	return 0
}

// longestString counts bytes: a character has up to four.
func (n *node) longestString() int64 {
	switch n.format {
	case "duration":
		return apicel.MaxDurationSizeJSON
	case "date":
		return apicel.JSONDateSize
	case "date-time":
		return apicel.MaxDatetimeSizeJSON
	}
	switch most := n.mostCharacters(); {
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

// smallest is how many bytes a value of n takes in JSON at least.
func (n *node) smallest() int64 {
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
			return n.smallestObject()
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

// smallestObject counts the fields that clients cannot leave out.
func (n *node) smallestObject() int64 {
	size, seen := len64(`{}`), map[string]bool{}
	for _, name := range n.required {
		child := n.properties[name]
		if !seen[name] && !child.hidden() && child.defaultJSON == "" {
			size += len64(name) + child.asSeen().smallest() + len64(`"":,`)
		}
		seen[name] = true
	}
	return size
}

func len64(s string) int64 { return int64(len(s)) }
