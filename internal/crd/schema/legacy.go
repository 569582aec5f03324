package schema

import "github.com/trellis-k8s/trellis/internal/object"

// structural reports whether the schema at the cursor can be read as a structural schema. Only CRDs of
// apiextensions.k8s.io/v1beta1 that preserve unknown fields can have other schemas. Such a schema is used only for
// OpenAPI validation.
func structural(c *object.Cursor) bool {
	ok := true
	also := func(below bool) { ok = ok && below }
	each := func(string) { also(structural(c)) }
	c.Members(func(key string) {
		switch key {
		case "id", "$schema", "$ref":
			also(c.Text() == "")
		case "patternProperties", "dependencies", "definitions":
			raw := c.Raw()
			also(raw == "{}" || raw == "null")
		case "additionalItems":
			also(c.Raw() == "null")
		case "x-kubernetes-preserve-unknown-fields":
			also(c.Raw() != "false")
		case "properties":
			c.Members(each)
		case "allOf", "anyOf", "oneOf":
			c.Elements(func(int) { each("") })
		case "items":
			if c.Kind() == '[' {
				also(c.Raw() == "[]")
			} else {
				each("")
			}
		case "additionalProperties", "not":
			each("")
		}
	})
	return ok
}
