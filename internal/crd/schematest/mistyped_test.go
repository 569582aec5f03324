package schematest

import "testing"

// TestMistyped checks that rules on values of wrong types have upstream's results in writes of the status. Such a
// write evaluates the rules outside status, but does not validate the types of values there.
// VAL-049
func TestMistyped(t *testing.T) {
	str, num := props{"type": "string"}, props{"type": "integer"}
	object := props{"type": "object", "properties": props{"a": num, "b": str}}
	schemas := []props{str, num, {"type": "number"}, {"type": "boolean"}, {"type": "string", "format": "date-time"},
		{"type": "string", "format": "duration"}, {"type": "string",
			"format": "byte"}, {"x-kubernetes-int-or-string": true},
		object, {"type": "object", "additionalProperties": num}, {"type": "array", "items": num}, {"type": "array",
			"items": object}, {"type": "array", "items": num, "x-kubernetes-list-type": "set"},
		{"type": "array", "items": props{"type": "object", "required": []any{"a"},
			"properties": props{"a": num, "b": str}}, "x-kubernetes-list-type": "map",
			"x-kubernetes-list-map-keys": []any{"a"}},
		{"type": "object", "properties": props{"a": object}}, {"type": "object",
			"properties": props{"a": props{"type": "array", "items": str}}}}
	values := append([]any{"x", int64(2), map[string]any{"a": "x"}, map[string]any{"a": int64(1), "b": int64(2)},
		[]any{"a"}, []any{int64(1), "a"}, []any{map[string]any{"a": "x"}},
		[]any{map[string]any{"a": int64(1), "b": int64(2)}},
		map[string]any{"a": map[string]any{"a": "x"}}, map[string]any{"a": []any{int64(1)}}, "2020-01-02T03:04:05Z",
		"1h", "aGVsbG8="}, oddities...)
	failures := 0
	for _, s := range schemas {
		s["x-kubernetes-validations"] = []any{props{"rule": "self == oldSelf"}, props{"rule": "oldSelf != self"},
			props{"rule": "self == self"}}
		p, err := newPair(rootWith("spec", s))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			for _, old := range values {
				if _, difference := p.validate(objectWith("spec", copied(v)), objectWith("spec", copied(old)),
					true); difference != "" && failures < 400 {
					t.Errorf("%s\nschema %s\n%v instead of %v", difference, p.text, v, old)
					failures++
				}
			}
		}
	}
}
