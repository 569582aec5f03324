package schematest

import "strings"

// legacy returns a schema as in CRDs that were created with apiextensions.k8s.io/v1beta1, and whether the CRD
// preserves unknown fields. v1beta1 did not require a schema. The schema had to be structural only if it used
// extensions.
func (g *gen) legacy(root props) (schema props, preserve bool) {
	switch g.n(6) {
	case 0:
		return nil, true
	case 1: // as for a version that is not served
		return nil, false
	case 2, 3:
		drop(root, func(key string) bool { return key == "default" || strings.HasPrefix(key, "x-kubernetes-") })
		g.makeNonStructural(root)
	default:
		drop(root, func(key string) bool { return key == "default" })
	}
	return root, true
}

// drop removes some keywords from a schema and all schemas below it.
func drop(v any, is func(string) bool) {
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			if key != "properties" && is(key) {
				delete(v, key)
				continue
			}
			if fields, ok := below.(props); ok && key == "properties" {
				for _, s := range fields {
					drop(s, is)
				}
				continue
			}
			drop(below, is)
		}
	case []any:
		for _, w := range v {
			drop(w, is)
		}
	}
}

// makeNonStructural adds keywords to some parts of a schema that make it non-structural.
func (g *gen) makeNonStructural(v any) {
	s, _ := v.(props)
	if s == nil {
		return
	}
	switch g.n(16) {
	case 0:
		s["$schema"] = "x"
	case 1, 2:
		delete(s, "type")
	case 3:
		s["allOf"] = []any{props{"type": pick(g.source, "string", "object", "array"), "description": "text"}}
	case 4:
		s["anyOf"] = []any{props{"additionalProperties": props{"type": "string"}},
			props{"properties": props{"foo": props{"type": "string", "nullable": true}}}}
	case 5:
		s["not"] = props{"additionalProperties": g.oneIn(2), "nullable": true}
	case 6:
		s["type"] = "odd"
	case 7:
		s["pattern"] = "("
	}
	fields, _ := s["properties"].(props)
	for _, name := range sorted(fields) {
		g.makeNonStructural(fields[name])
	}
	g.makeNonStructural(s["items"])
	g.makeNonStructural(s["additionalProperties"])
}
