package crdvalidation

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	upstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
)

// withSchema returns a CRD with one version that has the given schema. schema is JSON or YAML.
func withSchema(t testing.TB, schema string) CRD {
	t.Helper()
	js, err := yaml.YAMLToJSON([]byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	crd, err := prepared(fmt.Appendf(nil,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"name":"foos.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"foos","singular":"foo","kind":"Foo"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":%s}}]}}`, js))
	if err != nil {
		t.Fatal(err)
	}
	return crd
}

func example(t testing.TB, name string) CRD {
	t.Helper()
	data, err := os.ReadFile(outside.Path("spec/examples/" + name))
	if err != nil {
		t.Skip("the examples of the specification are not there: ../shared/spec/examples, beside the module")
	}
	js, err := yaml.YAMLToJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	crd, err := prepared(js)
	if err != nil {
		t.Fatal(err)
	}
	return crd
}

const rulePath = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]"

// TestRules checks the validation of rules. Each case is the schema of spec and the first error as "path: text". The
// error is "" for a valid schema.
func TestRules(t *testing.T) {
	const integer, anyString = `type: integer`, `type: string`
	rules := func(schema, rule string) string { return schema + "\nx-kubernetes-validations: [" + rule + "]" }
	for _, c := range []struct{ name, schema, want string }{
		// VAL-050, VAL-053
		{"no matching overload", rules(integer, `{rule: "self == true"}`),
			rulePath + `.rule: compilation failed: ERROR: <input>:1:6: found no matching overload for '_==_' ` +
				`applied to '(int, bool)'`},
		// VAL-051
		{"no such field", rules(`{type: object}`[1:13], `{rule: "self.nonExistingField > 0"}`),
			rulePath + `.rule: compilation failed: ERROR: <input>:1:5: undefined field 'nonExistingField'`},
		// VAL-052
		{"invalid argument", rules(integer, `{rule: "has(self)"}`),
			rulePath + `.rule: compilation failed: ERROR: <input>:1:5: invalid argument to has() macro`},
		{"syntax", rules(integer, `{rule: "self +"}`), rulePath +
			`.rule: compilation failed: ERROR: <input>:1:7: Syntax error`},
		{"not a bool", rules(integer, `{rule: "self"}`), rulePath + `.rule: cel expression must evaluate to a bool`},
		{"a bad literal", rules(anyString, `{rule: "self.matches('[')"}`),
			rulePath + `.rule: compilation failed: ERROR: <input>:1:14: invalid matches argument`},
		{"a type without a value", rules(anyString, `{rule: "type(self) == timestamp"}`),
			rulePath + `.rule: program instantiation failed`},
		// VAL-107, VAL-108, VAL-109
		{"messageExpression of another type", rules(integer, `{rule: "self > 0", messageExpression: "self"}`),
			rulePath + `.messageExpression: messageExpression must evaluate to a string`},
		{"string and int", rules(integer, `{rule: "self > 0", messageExpression: "'x' + self"}`),
			rulePath + `.messageExpression: messageExpression compilation failed: ERROR: <input>:1:5: found no ` +
				`matching overload for '_+_' applied to '(string, int)'`},
		{"messageExpression of spaces", rules(integer, `{rule: "self > 0", messageExpression: " "}`),
			rulePath + `.messageExpression: messageExpression must be non-empty if specified`},
		// VAL-110
		{"string() of a number", rules(integer, `{rule: "self > 0", messageExpression: "'x is ' + string(self)"}`), ``},
		// VAL-115
		{"an expensive messageExpression",
			rules(anyString, `{rule: "true", messageExpression: "self.replace('a', self)"}`), ``},
		{"a too expensive messageExpression", rules("type: array\nitems: {type: string}",
			`{rule: "true", messageExpression: "self.join(self[0])"}`),
			rulePath + `.messageExpression: estimated messageExpression cost exceeds budget by factor of`},
		// VAL-117
		{"no rule", rules(integer, `{rule: " "}`), rulePath + `.rule: rule is not specified`},
		{"message of spaces", rules(integer, `{rule: "self > 0", message: " "}`),
			rulePath + `.message: must be non-empty if specified`},
		{"message of two lines", rules(integer, `{rule: "self > 0", message: "a\nb"}`),
			rulePath + `.message: must not contain line breaks`},
		{"rule of two lines", rules(integer, `{rule: "self >\n0"}`),
			rulePath + `.message: message must be specified if rule contains line breaks`},
		{"rule of two lines with message", rules(integer, `{rule: "self >\n0", message: m}`), ``},
		// VAL-118, VAL-121
		{"a reason", rules(integer, `{rule: "self > 0", reason: FieldValueForbidden}`), ``},
		{"another reason", rules(integer, `{rule: "self > 0", reason: InternalError}`),
			rulePath + `.reason: supported values: "FieldValueDuplicate", "FieldValueForbidden", ` +
				`"FieldValueInvalid", "FieldValueRequired"`},
		// VAL-123, VAL-124, VAL-125, VAL-127
		{"fieldPath", rules("type: object\nproperties: {a: {type: object, properties: {b: {type: integer}}}}",
			`{rule: "self.a.b > 0", fieldPath: ".a.b"}`), ``},
		{"fieldPath into a map", rules("type: object\nproperties: {a: {type: object, additionalProperties: {type: "+
			"integer}}}", `{rule: "self.a['b'] > 0", fieldPath: ".a['b']"}, {rule: "self.a['b'] > 0", `+
			`fieldPath: ".a.b"}`), ``},
		{"fieldPath to nothing", rules("type: object\nproperties: {a: {type: integer}}",
			`{rule: "self.a > 0", fieldPath: ".b"}`), rulePath + `.fieldPath: must be a valid path`},
		{"fieldPath into a list", rules("type: object\nproperties: {a: {type: array, items: {type: integer}}}",
			`{rule: "self.a[0] > 0", fieldPath: ".a[0]"}`), rulePath + `.fieldPath: must be a valid path`},
		{"fieldPath into the objects of a list",
			rules("type: object\nproperties: {a: {type: array, items: {type: object, properties: {b: {type: "+
				"integer}}}}}", `{rule: "self.a[0].b > 0", fieldPath: ".a[0].b"}`),
			rulePath + `.fieldPath: must be a valid path`},
		{"fieldPath of all children", rules("type: object\nproperties: {a: {type: object, additionalProperties: "+
			"{type: integer}}}", `{rule: "self.a['b'] > 0", fieldPath: ".a[*]"}`),
			rulePath + `.fieldPath: must be a valid path`},
		{"fieldPath of descendants", rules("type: object\nproperties: {a: {type: object, properties: {b: {type: "+
			"integer}}}}", `{rule: "self.a.b > 0", fieldPath: "..b"}`), rulePath + `.fieldPath: must be a valid path`},
		// VAL-134
		{"optionalOldSelf without oldSelf", rules(integer, `{rule: "self > 0", optionalOldSelf: true}`),
			rulePath + `.optionalOldSelf: may not be set if oldSelf is not used in rule`},
		// VAL-128, VAL-131
		{"optionalOldSelf", rules(integer,
			`{rule: "!oldSelf.hasValue() || oldSelf.value() <= self", optionalOldSelf: true}`), ``},
		{"oldSelf is optional", rules(integer, `{rule: "self >= oldSelf", optionalOldSelf: true}`),
			rulePath + `.rule: compilation failed: ERROR: <input>:1:6: found no matching overload for '_>=_' ` +
				`applied to '(int, optional_type(int))'`},
		// VAL-143, VAL-144
		{"oldSelf in an atomic list", "type: array\nitems:\n  type: integer\n  x-kubernetes-validations: [{rule: " +
			"self > oldSelf}]",
			`spec.validation.openAPIV3Schema.properties[spec].items.x-kubernetes-validations[0].rule: oldSelf ` +
				`cannot be used on the uncorrelatable portion of the schema within ` +
				`spec.validation.openAPIV3Schema.properties[spec]`},
		{"oldSelf in a set", "type: array\nx-kubernetes-list-type: set\nitems:\n  type: integer\n  " +
			"x-kubernetes-validations: [{rule: self > oldSelf}]",
			`spec.validation.openAPIV3Schema.properties[spec].items.x-kubernetes-validations[0].rule: oldSelf ` +
				`cannot be used`},
		{"oldSelf in a list map", "type: array\nx-kubernetes-list-type: map\nx-kubernetes-list-map-keys: " +
			"[k]\nitems:\n  type: object\n  required: [k]\n  properties: {k: {type: string}, v: {type: integer, " +
			"x-kubernetes-validations: [{rule: self >= oldSelf}]}}", ``},
		// VAL-093: for CEL, an object that preserves unknown fields is a message, not a map.
		{"an object by key", rules("type: object\nx-kubernetes-preserve-unknown-fields: true\nproperties: {a: "+
			"{type: integer}}", `{rule: "self['a'] > 0"}`), rulePath +
			`.rule: compilation failed: ERROR: <input>:1:5: found no matching overload for '_[_]'`},
		{"a field of an object", rules("type: object\nx-kubernetes-preserve-unknown-fields: true\nproperties: {a: "+
			"{type: integer}}", `{rule: "self.a > 0"}`), ``},
		{"an unknown field of an object",
			rules("type: object\nx-kubernetes-preserve-unknown-fields: true\nproperties: {a: {type: integer}}",
				`{rule: "has(self.b)"}`),
			rulePath + `.rule: compilation failed: ERROR: <input>:1:4: undefined field 'b'`},
		// VAL-075, VAL-076
		{"unknown fields", rules("type: object\nx-kubernetes-preserve-unknown-fields: true",
			`{rule: "self.unknown > 0"}`),
			rulePath + `.rule: compilation failed: ERROR: <input>:1:5: undefined field 'unknown'`},
		{"rules without a type", rules("x-kubernetes-preserve-unknown-fields: true", `{rule: "self.unknown > 0"}`),
			`spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations: internal error: failed to ` +
				`construct type information for x-kubernetes-validations rules: unable to convert structural ` +
				`schema to CEL declarations`},
		// VAL-016
		{"rules in a value validation", "type: integer\nallOf: [{minimum: 1, x-kubernetes-validations: [{rule: self " +
			"> 0}]}]", `spec.validation.openAPIV3Schema.properties[spec].allOf[0].x-kubernetes-validations: must ` +
			`be empty to be structural`},
		// VAL-084
		{"escapes", rules("type: object\nproperties: {namespace: {type: integer}, x-prop: {type: integer}, "+
			"redact__d: {type: integer}, string: {type: string}}",
			`{rule: "self.__namespace__ > 0 && self.namespace > 0 && self.x__dash__prop > 0 && `+
				`self.redact__underscores__d > 0 && self.string.startsWith('kube')"}`), ``},
		// VAL-099, VAL-100, VAL-103, VAL-104, VAL-106
		{"types", rules("type: object\nproperties: {f: {type: number, format: float}, i: {type: integer, format: "+
			"int32}, b: {type: string, format: byte}, d: {type: string, format: date}, t: {type: string, format: "+
			"date-time}, u: {type: string, format: duration}}",
			`{rule: "self.f > 1.0 && self.i > 1 && self.b == b'x' && self.d < self.t && self.t + self.u > self.d"}`),
			``},
		// VAL-160
		{"behind filter()", rules("type: array\nmaxItems: 10\nitems: {type: object, properties: {name: {type: "+
			"string, maxLength: 20}, value: {type: string, maxLength: 20}}}",
			`{rule: "self.filter(e, e.name == 'a').all(e, e.value.matches('^[a-z]*$'))"}`), ``},
	} {
		crd := withSchema(t, "type: object\nproperties:\n  spec:\n    "+strings.ReplaceAll(c.schema, "\n", "\n    "))
		errs := Create(crd)
		switch {
		case c.want == "" && len(errs) > 0:
			t.Errorf("%s: %v", c.name, errs)
		case c.want != "" && (len(errs) == 0 || !strings.HasPrefix(errs[0].Field+": "+
			strings.TrimPrefix(errs[0].Detail, " "), c.want)):
			t.Errorf("%s: %v\nwant %s", c.name, errs, c.want)
		}
		if !slices.Contains([]string{"string() of a number", "behind filter()"}, c.name) {
			compare(t, c.name, errs, upstream.ValidateCustomResourceDefinition(t.Context(),
				crd.Upstream()))
		}
	}
}

// TestCostsOfExamples checks the estimated costs of the examples in the specification.
// VAL-155, VAL-156, VAL-157, VAL-158, VAL-159, VAL-163
func TestCostsOfExamples(t *testing.T) {
	for name, want := range map[string]string{
		"unbounded": "estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or " +
			"adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
		"bounded": "", "peritem": "", "flat": "",
		"nested": "estimated rule cost exceeds budget by factor of",
	} {
		crd := example(t, "03-validation/cel-cost-"+name+".crd.yaml")
		errs := Create(crd)
		if want == "" && len(errs) > 0 || want != "" && (len(errs) == 0 || errs[0].Type != field.ErrorTypeForbidden ||
			!strings.HasPrefix(errs[0].Detail, want)) {
			t.Errorf("%s: %v", name, errs)
		}
		compare(t, name, errs, upstream.ValidateCustomResourceDefinition(t.Context(), crd.Upstream()))
	}
}

// TestBoundsInsideAllOf checks that bounds inside allOf limit the estimated cost, because controller-gen writes
// bounds there. If there are several bounds, the lowest one is used (VAL-157).
func TestBoundsInsideAllOf(t *testing.T) {
	for name, c := range map[string]struct{ schema, rule string }{
		"maxLength": {`type: array, maxItems: 1000, items: {type: string, allOf: [{maxLength: 253}, ` +
			`{maxLength: 63}]}`, `self.all(a, a.matches('^[a-z]*$'))`},
		"maxItems": {`type: array, items: {type: string, allOf: [{allOf: [{maxLength: 20}]}]}, allOf: ` +
			`[{maxItems: 10}, {minItems: 1}]`, `self.all(a, self.all(b, a != b || a.matches('^[a-z]*$')))`},
		"maxProperties": {`type: object, additionalProperties: {type: string, maxLength: 20}, allOf: ` +
			`[{maxProperties: 10}]`, `self.all(k, self.all(l, k != l || self[k].matches('^[a-z]*$')))`},
		"items": {`type: array, allOf: [{maxItems: 10}], items: {type: string, maxLength: 1000, ` +
			`x-kubernetes-validations: [{rule: "self.matches('^[a-z]*$')"}]}`, `true`},
	} {
		schema := "{type: object, properties: {spec: {" + c.schema + `, x-kubernetes-validations: [{rule: "` + c.rule +
			`"}]}}}`
		if errs := Create(withSchema(t, schema)); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
		if errs := Create(withSchema(t, strings.ReplaceAll(schema, "allOf", "anyOf"))); len(errs) == 0 {
			t.Errorf("%s: bounds inside anyOf limit the cost, want no effect", name)
		}
	}
}

// TestTotalCost checks that the total cost of many rules has a limit, and that the error names the four most
// expensive rules.
// VAL-152
func TestTotalCost(t *testing.T) {
	var properties []string
	for i := range 20 {
		properties = append(properties, fmt.Sprintf(`p%d: {type: array, maxItems: %d, items: {type: string, `+
			`maxLength: 1000, x-kubernetes-validations: [{rule: "self.matches('^[a-z]*$')"}]}}`, i, 8000+i))
	}
	crd := withSchema(t, "{type: object, properties: {spec: {type: object, properties: {"+
		strings.Join(properties, ", ")+"}}}}")
	errs := Create(crd)
	compare(t, "total", errs, upstream.ValidateCustomResourceDefinition(t.Context(), crd.Upstream()))
	if len(errs) != 5 || errs[4].Field != "spec.validation.openAPIV3Schema" ||
		!strings.HasPrefix(errs[4].Detail,
			"x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by "+
				"factor of 1.") {
		t.Errorf("%v", errs)
	}
	if !strings.HasPrefix(errs[0].Field, "spec.validation.openAPIV3Schema.properties[spec].properties[p19].items") {
		t.Errorf("got first error %v, want the most expensive rule", errs[0])
	}
}

// TestAcceptedBeyondUpstream checks CRDs that the specification accepts and upstream rejects.
// SCH-046, VAL-110, VAL-160
func TestAcceptedBeyondUpstream(t *testing.T) {
	for name, refused := range map[string]string{
		"02-schemas/embedded-untyped.crd.yaml":         "must be object if x-kubernetes-embedded-resource is true",
		"03-validation/cel-messageexpression.crd.yaml": "estimated messageExpression cost exceeds budget",
	} {
		crd := example(t, name)
		if errs := Create(crd); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
		if errs := upstream.ValidateCustomResourceDefinition(t.Context(),
			crd.Upstream()); len(errs) == 0 || !strings.Contains(errs[0].Detail, refused) {
			t.Errorf("%s: upstream: %v", name, errs)
		}
	}
	bounded := withSchema(t, `{type: object, properties: {envars: {type: array, maxItems: 10, items: {type: object,
	properties: {name: {type: string, maxLength: 20}, value: {type: string, maxLength: 20}}}}},
		x-kubernetes-validations: [{rule: "self.envars.filter(e, e.name == 'MY_ENV').all(e,
		e.value.matches('^[a-zA-Z]*$'))"}]}`)
	if errs := Create(bounded); len(errs) > 0 {
		t.Error(errs)
	}
	if errs := upstream.ValidateCustomResourceDefinition(t.Context(),
		bounded.Upstream()); len(errs) == 0 {
		t.Error("upstream estimates filter() correctly: remove it from compatibility.md")
	}
	// Without bounds in the schema, the rule is too expensive.
	unbounded := withSchema(t, `{type: object, properties: {envars: {type: array, items: {type: object,
	properties: {name: {type: string}, value: {type: string}}}}},
		x-kubernetes-validations: [{rule: "self.envars.filter(e, e.name == 'MY_ENV').all(e,
		e.value.matches('^[a-zA-Z]*$'))"}]}`)
	if errs := Create(unbounded); len(errs) == 0 {
		t.Error("an unbounded rule was accepted")
	}
}

// TestSpecificationVectorsCompile checks that each rule in the specification's test vectors compiles or fails as
// specified.
// VAL-054 to VAL-066, VAL-073
func TestSpecificationVectorsCompile(t *testing.T) {
	data, err := os.ReadFile(outside.Path("spec/examples/03-validation/cel-vectors.yaml"))
	if err != nil {
		t.Skip("the examples of the specification are not there: ../shared/spec/examples, beside the module")
	}
	var vectors []struct {
		Name    string
		Schema  map[string]any
		Rule    string
		Root    bool
		Compile *bool
		Rules   []map[string]any

		OptionalOldSelf *bool `json:"optionalOldSelf"`
	}
	if err := yaml.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		rule := map[string]any{"rule": v.Rule}
		if v.OptionalOldSelf != nil {
			rule["optionalOldSelf"] = *v.OptionalOldSelf
		}
		if v.Rule != "" {
			v.Schema["x-kubernetes-validations"] = []any{rule}
		}
		schema := any(v.Schema)
		if !v.Root {
			schema = map[string]any{"type": "object", "properties": map[string]any{"spec": schema}}
		}
		js, err := yaml.Marshal(schema)
		if err != nil {
			t.Fatal(err)
		}
		errs := Create(withSchema(t, string(js)))
		if compiles := v.Compile == nil || *v.Compile; compiles != (len(errs) == 0) {
			t.Errorf("%s: %v", v.Name, errs)
		}
	}
}
