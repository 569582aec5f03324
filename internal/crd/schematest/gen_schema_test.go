package schematest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	apicel "k8s.io/apiserver/pkg/cel"
)

// props is a JSON object, usually a schema.
type props = map[string]any

// gen generates structural schemas and objects for them.
type gen struct {
	*source
	left           int // remaining number of nodes
	wrongValueRate int // one of this many values is wrong; 0 means none
	mistakeRate    int // one of this many schemas is invalid; 0 means none
	rules          bool
	old            bool // schemas may contain constructs that only stored CRDs may have
}

var names = []string{"foo", "status", "bar", "baz", "name", "key", "x-prop", "a.b", "a/b", "namespace", "redact__d",
	"größe", "self", "1st", "metadata", "kind", "items", "type", "has space"}

// root returns the schema of a version.
func (g *gen) root() props { return g.schemaOf(6 + g.n(40)) }

// schemaOf returns a root schema with about the given number of nodes.
func (g *gen) schemaOf(nodes int) props {
	g.left = nodes
	s := props{"type": "object"}
	g.fields(s, 0)
	delete(s["properties"].(props), "metadata")
	delete(s["properties"].(props), "kind")
	at := s["properties"].(props)
	if g.oneIn(4) {
		at["apiVersion"], at["kind"] = props{"type": "string"}, props{"type": "string"}
		if g.oneIn(2) {
			g.rule(at["kind"].(props), 1)
			at["kind"].(props)["enum"] = pick(g.source, []any{"Foo"}, []any{"Bar"})
		}
	}
	if g.oneIn(5) {
		md := props{"type": "object"}
		if g.oneIn(2) {
			md["properties"] = props{"name": props{"type": "string", "maxLength": 5, "pattern": "^[a-z]*$"}}
		}
		at["metadata"] = md
	}
	g.require(s)
	g.extras(s, 0)
	if g.oneIn(6) {
		s["x-kubernetes-preserve-unknown-fields"] = true
		if g.mistakeRate > 0 && g.oneIn(3) { // valid, but without rules
			delete(s, "type")
		}
	}
	if g.mistakeHere() {
		g.addFormerlyValid(s)
	}
	return s
}

func (g *gen) fields(s props, depth int) {
	fields := props{}
	for range 1 + g.n(4) {
		fields[pick(g.source, names...)] = g.node(depth + 1)
	}
	s["properties"] = fields
}

func sorted(s props) []string { return slices.Sorted(maps.Keys(s)) }

// require makes some properties of s required.
func (g *gen) require(s props) {
	fields, _ := s["properties"].(props)
	var required []any
	for _, name := range sorted(fields) {
		if g.oneIn(5) {
			required = append(required, name)
		}
	}
	if g.oneIn(40) {
		required = append(required, "absent")
	}
	if required != nil {
		s["required"] = required
	}
}

// node returns a random schema below the root.
func (g *gen) node(depth int) props {
	g.left--
	kind := g.n(15)
	if g.left < 0 || depth > 7 {
		kind %= 6
	}
	s := props{}
	switch kind {
	case 0, 1:
		g.text(s)
	case 2, 3:
		g.number(s)
	case 4:
		s["type"] = "boolean"
	case 5:
		g.intOrString(s)
	case 6, 7, 8:
		s["type"] = "object"
		g.fields(s, depth)
		g.require(s)
		g.sizes(s, "Properties", 5)
	case 9, 10:
		g.additional(s, depth)
	case 11, 12, 13:
		g.list(s, depth)
	default:
		g.freeForm(s, depth)
	}
	g.extras(s, depth)
	return s
}

func (g *gen) text(s props) {
	s["type"] = "string"
	switch g.n(5) {
	case 1:
		s["format"] = pick(g.source, formatNames...)
	case 2:
		s["pattern"] = pick(g.source, patterns...).expr
	case 3:
		g.sizes(s, "Length", 6)
	}
}

func (g *gen) sizes(s props, of string, up int) {
	if g.oneIn(4) {
		s["min"+of] = g.n(3)
	}
	if g.oneIn(3) {
		s["max"+of] = 1 + g.n(up)
	}
}

func (g *gen) number(s props) {
	s["type"] = pick(g.source, "integer", "number", "integer")
	if g.oneIn(3) {
		s["format"] = pick(g.source, "int32", "int64", "float", "double", "date", "unheard-of")
	}
	g.bounds(s)
}

func (g *gen) bounds(s props) {
	if g.oneIn(4) {
		s["minimum"] = pick[any](g.source, 0, 1, -5, 0.5, 1e10, 9007199254740993)
		s["exclusiveMinimum"] = g.oneIn(3)
	}
	if g.oneIn(4) {
		s["maximum"] = pick[any](g.source, 10, 3, 100.5, 1e20, 9223372036854775807)
		s["exclusiveMaximum"] = g.oneIn(3)
	}
	if g.oneIn(6) {
		s["multipleOf"] = pick[any](g.source, 2, 0.5, 5, 0.1, 1e9, 2, 0.5, 5, 0, -1.5)
	}
}

// intOrString writes one of the three forms of int-or-string to s. Some also have a type, which the validation of
// objects ignores.
func (g *gen) intOrString(s props) {
	s["x-kubernetes-int-or-string"] = true
	two := func() []any { return []any{props{"type": "integer"}, props{"type": "string"}} }
	switch g.n(3) {
	case 1:
		s["anyOf"] = two()
	case 2:
		all := []any{props{"anyOf": two()}}
		if g.oneIn(2) {
			all = append(all, g.nested(s, 0))
		}
		s["allOf"] = all
	}
	if g.oneIn(4) {
		s["pattern"] = "^[0-9]+%?$"
	}
	if g.oneIn(6) {
		g.bounds(s)
	}
	if g.oneIn(8) {
		s["format"] = pick(g.source, "int32", "int64", "date")
	}
	if g.oneIn(5) {
		s["type"] = pick(g.source, "string", "integer", "string", "number", "boolean", "object")
	}
}

func (g *gen) additional(s props, depth int) {
	s["type"] = "object"
	if g.oneIn(10) {
		s["additionalProperties"] = true
	} else if g.old && g.oneIn(20) {
		s["additionalProperties"] = false
	} else {
		s["additionalProperties"] = g.node(depth + 1)
	}
	g.sizes(s, "Properties", 3)
	if g.oneIn(5) {
		s["x-kubernetes-map-type"] = pick(g.source, "atomic", "granular")
	}
}

func (g *gen) list(s props, depth int) {
	s["type"] = "array"
	g.sizes(s, "Items", 4)
	switch g.n(4) {
	case 1:
		s["x-kubernetes-list-type"] = "set"
		item := props{}
		switch g.n(4) {
		case 0:
			g.text(item)
		case 1:
			g.number(item)
		case 2:
			item = props{"type": "object", "x-kubernetes-map-type": "atomic"}
			g.fields(item, depth+1)
		default:
			item = props{"type": "array", "x-kubernetes-list-type": "atomic", "items": props{"type": "integer"}}
		}
		s["items"] = item
	case 2:
		s["x-kubernetes-list-type"] = "map"
		item := props{"type": "object"}
		g.fields(item, depth+1)
		fields := item["properties"].(props)
		keys, required := []any{}, []any{}
		for _, k := range [][]string{{"key"}, {"key", "port"}, {"name"}}[g.n(3)] {
			p := props{"type": pick(g.source, "string", "string", "integer", "boolean", "number")}
			if g.old && g.oneIn(12) { // old CRDs may have keys that are neither required nor have a default
			} else if g.oneIn(3) {
				p["default"] = map[string]any{"string": "TCP", "integer": 80, "boolean": true,
					"number": 1.5}[p["type"].(string)]
			} else {
				required = append(required, k)
			}
			fields[k] = p
			keys = append(keys, k)
		}
		if len(required) > 0 {
			item["required"] = required
		}
		g.rule(item, depth+1)
		s["items"], s["x-kubernetes-list-map-keys"] = item, keys
	default:
		if g.oneIn(3) {
			s["x-kubernetes-list-type"] = "atomic"
		}
		s["items"] = g.node(depth + 1)
	}
}

// freeForm makes s preserve unknown fields or embed a resource.
func (g *gen) freeForm(s props, depth int) {
	if g.oneIn(3) {
		s["x-kubernetes-preserve-unknown-fields"] = true
		return
	}
	s["type"] = "object"
	if g.oneIn(3) {
		switch s["x-kubernetes-preserve-unknown-fields"] = true; g.n(4) {
		case 0, 1:
			g.fields(s, depth)
		case 2:
			g.additional(s, depth)
		}
		return
	}
	s["x-kubernetes-embedded-resource"] = true
	if g.oneIn(2) {
		s["x-kubernetes-preserve-unknown-fields"] = true
	}
	g.fields(s, depth)
	fields := s["properties"].(props)
	delete(fields, "kind")
	delete(fields, "metadata")
	g.metadata(fields, depth)
	if len(fields) == 0 {
		s["x-kubernetes-preserve-unknown-fields"] = true
	}
}

// metadata adds schemas for the type and the metadata of an embedded resource.
func (g *gen) metadata(fields props, depth int) {
	if g.oneIn(3) {
		kind := props{"type": "string", "enum": []any{"Pod", "Foo"}}
		if g.oneIn(3) {
			kind["default"] = pick(g.source, "Pod", "Foo", "Pod", "Bar", "")
		}
		g.rule(kind, depth+1)
		fields["kind"] = kind
	}
	if !g.oneIn(2) {
		return
	}
	md := props{"type": "object"}
	if g.oneIn(3) {
		md["default"] = pick(g.source, props{"name": "x", "unknown": 1}, props{"name": "x"},
			props{"labels": props{"a": "b"}}, props{"name": 1}, props{"finalizers": []any{"a b"}})
	}
	str := props{"type": "string"}
	known := props{"name": props{"type": "string", "maxLength": 4}, "generateName": copied(str),
		"generation": props{"type": "integer"}, "labels": props{"type": "object", "additionalProperties": copied(str)},
		"finalizers": props{"type": "array", "items": copied(str)}, "unknown": props{"type": "object",
			"properties": props{"foo": copied(str)}},
		"ownerReferences": props{"type": "array", "items": props{"type": "object",
			"properties": props{"name": props{"type": "string"}, "bar": copied(str)}}},
		"managedFields": props{"type": "array", "items": props{"type": "object",
			"properties": props{"fieldsV1": props{"type": "object",
				"properties": props{"f:a": props{"type": "object"}}}}}}}
	filled := map[string][]any{"name": {"x", "A B", "toolong"}, "generateName": {"x-", 1}, "generation": {1, "x"},
		"labels": {props{"a": "b"}, props{"a b": "c"}}, "finalizers": {[]any{}, []any{"a/b"}}, "unknown": {props{},
			props{"foo": "x"}},
		"ownerReferences": {[]any{props{"name": "x"}}, []any{}},
		"managedFields":   {[]any{props{"manager": "x", "fieldsV1": props{"f:a": props{}}}}, []any{props{"time": "x"}}}}
	for _, name := range sorted(known) {
		p := known[name].(props)
		if !g.oneIn(2) {
			delete(known, name)
			continue
		}
		if g.oneIn(3) {
			p["default"] = copied(pick(g.source, filled[name]...))
		}
		g.defaultsBelow(p)
		g.rule(p, depth+1)
	}
	md["properties"] = known
	fields["metadata"] = md
}

// defaultsBelow adds valid and invalid defaults to the fields of metadata.
func (g *gen) defaultsBelow(p props) {
	for _, key := range []string{"items", "additionalProperties"} {
		if below, ok := p[key].(props); ok && g.oneIn(3) {
			below["default"] = copied(pick[any](g.source, "a", "a/b", 1, props{"name": "x"}, nil))
			g.defaultsBelow(below)
		}
	}
	fields, _ := p["properties"].(props)
	for _, name := range sorted(fields) {
		if g.oneIn(4) {
			fields[name].(props)["default"] = copied(pick[any](g.source, "x", 1, props{"f:a": props{}}, props{}))
		}
		g.defaultsBelow(fields[name].(props))
	}
}

// extras adds keywords that any node may have.
func (g *gen) extras(s props, depth int) {
	if depth > 0 {
		if g.oneIn(6) {
			s["nullable"] = true
		}
		if g.oneIn(15) {
			s["enum"] = g.enum(s)
		}
		if g.oneIn(6) {
			s["default"] = g.defaultFor(s)
		}
	}
	if g.oneIn(30) {
		s["description"], s["title"], s["example"] = "text", "title", props{"a": 1}
		s["externalDocs"] = props{"url": "http://example.com"}
	}
	if s["format"] == nil && g.oneIn(40) { // on a type without formats
		s["format"] = pick(g.source, "int32", "date", "unheard-of")
	}
	if s["x-kubernetes-int-or-string"] != true && g.oneIn(7) {
		g.valueValidations(s, depth)
	}
	g.rule(s, depth)
	if g.mistakeHere() {
		g.mistake(s)
	}
}

func (g *gen) enum(s props) []any {
	slip := g.wrongValueRate
	g.wrongValueRate = 0
	defer func() { g.wrongValueRate = slip }()
	list := []any{}
	for range 1 + g.n(3) {
		list = append(list, g.value(s, 3))
	}
	if s["nullable"] == true && g.oneIn(2) {
		list = append(list, nil)
	}
	if g.oneIn(6) { // the enum becomes long enough for an index
		for i := range 20 {
			list = append(list, pick[any](g.source, i, float64(i)+0.5, strings.Repeat("x", i), string(rune('0'+i))))
		}
	}
	return list
}

// defaultFor returns a default that is usually valid.
func (g *gen) defaultFor(s props) any {
	slip := g.wrongValueRate
	g.wrongValueRate = pick(g.source, 0, 0, 0, 60)
	defer func() { g.wrongValueRate = slip }()
	if g.mistakeHere() {
		g.wrongValueRate = 4
		return g.value(s, 3)
	}
	return pruned(g.value(s, 3), s)
}

// pruned returns v without its unknown fields, because defaults must not have such fields.
func pruned(v any, s props) any {
	switch v := v.(type) {
	case map[string]any:
		fields, _ := s["properties"].(props)
		for k, w := range v {
			if f, ok := fields[k].(props); ok {
				v[k] = pruned(w, f)
			} else if a, ok := s["additionalProperties"].(props); ok {
				v[k] = pruned(w, a)
			} else if s["x-kubernetes-preserve-unknown-fields"] != true &&
				s["x-kubernetes-embedded-resource"] != true && s["additionalProperties"] != true {
				delete(v, k)
			}
		}
	case []any:
		if items, ok := s["items"].(props); ok {
			for i := range v {
				v[i] = pruned(v[i], items)
			}
		}
	}
	return v
}

func (g *gen) valueValidations(s props, depth int) {
	some := func() []any {
		list := []any{}
		for range 1 + g.n(3) {
			list = append(list, g.nested(s, depth))
		}
		return list
	}
	switch g.n(5) {
	case 0:
		s["allOf"] = some()
	case 1:
		s["anyOf"] = some()
	case 2:
		s["oneOf"] = some()
	case 3:
		s["not"] = g.nested(s, depth)
	default:
		s["anyOf"], s["allOf"] = some(), some()
	}
}

// nested returns a schema for the values of s that a value validation may contain.
func (g *gen) nested(s props, depth int) props {
	n := props{}
	switch s["type"] {
	case "string":
		g.text(n)
	case "integer", "number":
		g.number(n)
	case "array":
		g.sizes(n, "Items", 3)
		if items, ok := s["items"].(props); ok && g.oneIn(2) && depth < 6 {
			n["items"] = g.nested(items, depth+1)
		}
	case "object":
		fields, _ := s["properties"].(props)
		below := props{}
		for _, name := range sorted(fields) {
			if name != "metadata" && g.oneIn(3) && depth < 6 {
				below[name] = g.nested(fields[name].(props), depth+1)
			}
		}
		if len(below) > 0 {
			n["properties"] = below
		}
		if len(fields) > 0 && g.oneIn(2) {
			n["required"] = []any{pick(g.source, sorted(fields)...)}
		}
		g.sizes(n, "Properties", 4)
	}
	delete(n, "type")
	if g.oneIn(8) {
		n["enum"] = g.enum(s)
	}
	if g.oneIn(8) && depth < 6 {
		g.valueValidations(n, depth+3)
	}
	if g.mistakeHere() {
		g.mistake(n)
	}
	return n
}

// asJSON returns the JSON of a schema or an object.
func asJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// escaped returns the name that rules use for a property.
func escaped(name string) (string, bool) {
	if strings.ContainsAny(name, " ") {
		return "", false
	}
	return apicel.Escape(name)
}
