package crdvalidation

import (
	"strings"
	"testing"

	upstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
)

// TestDefaults checks the validation of defaults. Each case is a schema of spec. The field want is the end of the
// path of the first error and its text. It is "" for a valid schema.
func TestDefaults(t *testing.T) {
	for _, c := range []struct{ name, schema, want string }{
		{"fits", "type: integer\ndefault: 1", ""},
		// DEF-012
		{"an unknown field", "type: object\ndefault: {a: 1, b: 2}\nproperties: {a: {type: integer}}",
			"properties[spec].default: must not have unknown fields"},
		{"an unknown field in an item", "type: array\ndefault: [{a: 1, b: 2}]\nitems: {type: object, properties: " +
			"{a: {type: integer}}}", "properties[spec].default: must not have unknown fields"},
		{"a preserved field", "type: object\nx-kubernetes-preserve-unknown-fields: true\ndefault: {a: 1}", ""},
		// DEF-013
		{"of another type", "type: integer\ndefault: x", "properties[spec].default:  in body must be of type integer"},
		{"out of range", "type: integer\nmaximum: 1\ndefault: 2",
			"properties[spec].default:  in body should be less than or equal to 1"},
		{"not in the enum", "type: string\nenum: [a]\ndefault: b", `properties[spec].default: supported values: "a"`},
		{"a field out of range", "type: object\ndefault: {a: 2}\nproperties: {a: {type: integer, maximum: 1}}",
			"properties[spec].default.a: "},
		{"a value validation", "type: object\ndefault: {}\nproperties: {a: {type: string}}\noneOf: [{required: [a]}]",
			"properties[spec].default: "},
		{"a rule", "type: integer\ndefault: 2\nx-kubernetes-validations: [{rule: self < 2, message: too large}]",
			"properties[spec].default: too large"},
		{"a rule below", "type: object\ndefault: {a: 2}\nproperties: {a: {type: integer, x-kubernetes-validations: " +
			"[{rule: self < 2}]}}", "properties[spec].default.a: failed rule: self < 2"},
		{"a rule above", "type: object\nproperties: {a: {type: integer, default: 2}}\nx-kubernetes-validations: " +
			"[{rule: self.a < 2}]", ""},
		{"a transition rule", "type: integer\ndefault: 2\nx-kubernetes-validations: [{rule: self == oldSelf}]", ""},
		{"a transition rule for a new value",
			"type: integer\ndefault: 2\nx-kubernetes-validations: [{rule: oldSelf.hasValue(), optionalOldSelf: true}]",
			"properties[spec].default: failed rule: oldSelf.hasValue()"},
		{"a rule that does not compile", "type: integer\ndefault: 2\nx-kubernetes-validations: [{rule: self.x}]",
			"properties[spec].default: rule compile error: compilation failed"},
		{"the apiVersion of an embedded resource",
			"type: object\nx-kubernetes-embedded-resource: true\nx-kubernetes-preserve-unknown-fields: " +
				"true\ndefault: {kind: Foo}", "properties[spec].default.apiVersion: "},
		{"the kind of an embedded resource",
			"type: object\nx-kubernetes-embedded-resource: true\nx-kubernetes-preserve-unknown-fields: " +
				"true\ndefault: {apiVersion: v1, kind: 'a b'}", "properties[spec].default.kind: "},
		{"embedded in a list", "type: array\nitems: {type: object, x-kubernetes-embedded-resource: true, " +
			"x-kubernetes-preserve-unknown-fields: true}\ndefault: [{kind: Foo}]",
			"properties[spec].default[0].apiVersion: "},
		// DEF-014
		{"unknown metadata", "type: object\nx-kubernetes-embedded-resource: true\nproperties: {a: {type: " +
			"integer}}\ndefault: {apiVersion: v1, kind: Foo, metadata: {name: a, nope: b}}", ""},
		{"a name of an embedded resource",
			"type: object\nx-kubernetes-embedded-resource: true\nproperties: {metadata: {type: object, properties: " +
				"{name: {type: string, default: a}}}}", ""},
		{"a bad name of an embedded resource",
			"type: object\nx-kubernetes-embedded-resource: true\nproperties: {metadata: {type: object, properties: " +
				"{name: {type: string, default: ..}}}}",
			"properties[spec].properties[metadata].properties[name].default: must result in valid metadata: " +
				"metadata.name"},
		{"bad finalizers", "type: object\nx-kubernetes-embedded-resource: true\nproperties: {metadata: {type: " +
			"object, properties: {finalizers: {type: array, items: {type: string, default: a b}}}}}",
			"properties[spec].properties[metadata].properties[finalizers].items.default: must result in valid " +
				"metadata: metadata.finalizers"},
		{"metadata with unknown fields",
			"type: object\nx-kubernetes-embedded-resource: true\nproperties: {metadata: {type: object, default: " +
				"{nope: a}}}", ""},
		{"below additionalProperties", "type: object\nadditionalProperties: {type: integer, default: x}", ""},
	} {
		crd := withSchema(t, "type: object\nproperties:\n  spec:\n    "+strings.ReplaceAll(c.schema, "\n", "\n    "))
		errs := Create(crd)
		switch {
		case c.want == "" && len(errs) > 0:
			t.Errorf("%s: %v", c.name, errs)
		case c.want != "" && (len(errs) == 0 || !strings.HasPrefix(errs[0].Field+": "+errs[0].Detail,
			"spec.validation.openAPIV3Schema."+c.want)):
			t.Errorf("%s: %v\nwant %s", c.name, errs, c.want)
		}
		compare(t, c.name, errs, upstream.ValidateCustomResourceDefinition(t.Context(), crd.Upstream()))
		compare(t, c.name+" (update)", Update(crd, crd), upstream.ValidateCustomResourceDefinitionUpdate(t.Context(),
			crd.Upstream(), crd.Upstream()))
	}
}

// TestUnprunedDefaultsMayStay checks that stored defaults with unknown fields remain valid, until an update prunes
// all of them.
// DEF-012
func TestUnprunedDefaultsMayStay(t *testing.T) {
	unpruned := withSchema(t, "{type: object, properties: {a: {type: object, default: {x: 1}, properties: {y: "+
		"{type: integer}}}, b: {type: object, default: {x: 1}, properties: {y: {type: integer}}}}}")
	one := withSchema(t, "{type: object, properties: {a: {type: object, default: {x: 1}, properties: {y: {type: "+
		"integer}}}}}")
	none := withSchema(t, "{type: object, properties: {a: {type: object, default: {y: 1}, properties: {y: {type: "+
		"integer}}}}}")
	for _, c := range []struct {
		name     string
		crd, old CRD
		ok       bool
	}{{"one to two", unpruned, one, true}, {"two to one", one, unpruned, true}, {"none to one", one, none, false}} {
		errs := Update(c.crd, c.old)
		if c.ok != (len(errs) == 0) {
			t.Errorf("%s: %v", c.name, errs)
		}
		compare(t, c.name, errs, upstream.ValidateCustomResourceDefinitionUpdate(t.Context(),
			c.crd.Upstream(), c.old.Upstream()))
	}
}
