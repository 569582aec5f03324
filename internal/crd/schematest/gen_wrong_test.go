package schematest

import (
	"maps"
	"slices"
	"strings"
)

// mistakeHere reports whether the generator makes a mistake at this point of a schema.
func (g *gen) mistakeHere() bool { return g.mistakeRate > 0 && g.oneIn(g.mistakeRate) }

// mistake adds an invalid keyword or value to s. It adds nothing for which Trellis intentionally differs from
// upstream (docs/compatibility.md).
func (g *gen) mistake(s props) {
	key := pick(g.source, slices.Sorted(maps.Keys(mistakes))...)
	s[key] = copied(pick(g.source, mistakes[key]...))
	if g.oneIn(4) {
		delete(s, pick(g.source, sorted(s)...))
	}
	if s["x-kubernetes-embedded-resource"] == true && s["x-kubernetes-int-or-string"] != true && s["type"] == nil {
		s["type"] = "object"
	}
}

var one = map[string]any{"type": "string", "x-kubernetes-validations": []any{map[string]any{"rule": "self.size() < 3"}},
	"default": "x"}

var mistakes = map[string][]any{
	"type":                           {"text", "null", "object", "array", "string"},
	"nullable":                       {true},
	"title":                          {"text"},
	"x-kubernetes-int-or-string":     {true},
	"x-kubernetes-embedded-resource": {true},
	"required":                       {[]any{"foo", "foo"}, []any{}},
	"enum":                           {[]any{}, []any{int64(1), "a", int64(1)}},
	"pattern":                        {"(", "^a"},
	"format":                         {"int32", "int64", "date", "float", "unheard-of", "byte"},
	"default":                        oddities,
	"items":                          {one, []any{one}, map[string]any{}},
	"properties": {map[string]any{"foo": one}, map[string]any{"metadata": one},
		map[string]any{"kind": one}, map[string]any{"kind": map[string]any{"type": "integer"},
			"apiVersion": map[string]any{"type": "boolean"}},
		map[string]any{"metadata": map[string]any{"type": "object",
			"properties": map[string]any{"name": one, "generateName": map[string]any{"type": "string"}}}}},
	"additionalProperties": {one, true},
	"patternProperties":    {map[string]any{"a": one}},
	"dependencies":         {map[string]any{"foo": []any{"bar"}}, map[string]any{"foo": one}},
	"additionalItems":      {true, one},
	"definitions":          {map[string]any{"a": one}},
	"$ref":                 {"#/definitions/a"},
	"$schema":              {"x"},
	"id":                   {"x"},
	"allOf": {[]any{one}, []any{map[string]any{"description": "text", "nullable": true}},
		[]any{map[string]any{"properties": map[string]any{"absent": map[string]any{"minLength": int64(1)}}}}},
	"not": {one, map[string]any{"items": map[string]any{"required": []any{"foo"}}},
		map[string]any{"x-kubernetes-preserve-unknown-fields": true}},
	"minimum":                              {int64(1), 0.5},
	"multipleOf":                           {int64(0), -1.5},
	"maxLength":                            {int64(-1), int64(0)},
	"x-kubernetes-list-type":               {"set", "map", "atomic", "bag"},
	"x-kubernetes-list-map-keys":           {[]any{"key"}, []any{"foo", "foo"}, []any{}, []any{"absent"}},
	"x-kubernetes-map-type":                {"atomic", "granular", "bag"},
	"x-kubernetes-preserve-unknown-fields": {true, false},
	"x-kubernetes-validations": {[]any{map[string]any{"rule": ""}},
		[]any{map[string]any{"rule": "self", "message": " "}},
		[]any{map[string]any{"rule": "true", "message": "two\nlines"}},
		[]any{map[string]any{"rule": "true", "optionalOldSelf": true}},
		[]any{map[string]any{"rule": "true", "reason": "Because"}}, []any{map[string]any{"rule": "self == oldSelf"}}},
}

// brokenRule makes one rule of a valid schema invalid.
func (g *gen) brokenRule(r, s props) {
	switch g.n(4) {
	case 0:
		r["rule"] = pick(g.source, "self.nope > 1", "  ", "self +", "1 + 1", "oldSelf == self || nope(self)",
			"oldSelf.hasValue()", "self.all(a, true)", "self.matches('(')", "'two\nlines' == self",
			"[1, 'a'].size() == 2")
	case 1:
		r["messageExpression"] = pick(g.source, "self", "1", "self +", "", "  ", "'a' + 1", "oldSelf", "self.nope",
			"'a'", "[1, 2].map(x, 'a')[0]", "self.all(x, true) ? 'a' : 'b'")
	case 2:
		r["message"] = pick(g.source, "", " ", "two\nlines", strings.Repeat("x", 3000))
	default:
		path, _ := r["fieldPath"].(string)
		for range 1 + g.n(3) {
			path += pick(g.source, g.pathToken(s), pick(g.source, pathTokens...))
		}
		r["fieldPath"] = path
	}
}

// pathToken returns the first token of a path from s. The token can be incomplete.
func (g *gen) pathToken(s props) string {
	fields, _ := s["properties"].(props)
	if len(fields) == 0 {
		return "['k1']"
	}
	name := pick(g.source, sorted(fields)...)
	return pick(g.source, "."+name, "['"+name+"']", "['"+name+"'", "['"+name+"'.")
}

var pathTokens = []string{".", "[", "]", ".foo", ".bar", "['foo']", "['k1']", ".k1", "foo", "'", "''", "['a.b']",
	"['a/b']", "['größe']", `['\a\b\f\n\r\t\v\'\\']`, `['\q']`, "[0]", "['foo'", "['foo'.", "['foo'x]", "[foo]", "..",
	"\n", ".metadata", ".any", "['has space']"}
