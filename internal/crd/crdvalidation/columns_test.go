package crdvalidation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	upstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// jsonPaths are valid and invalid JSON paths for columns, scale subresources and selectable fields.
var jsonPaths = []string{
	"", ".", "..", "spec", "spec.replicas", ".spec", ".spec.", ".spec.replicas", ".spec..replicas", ".spec.replicas.",
	".status", ".status.replicas", ".status.selector",
	".spec.list[0]", ".spec['replicas']", ".metadata.name", ".metadata", ".spec.text", ".spec.flag", ".spec.num",
	".spec.map.key", ".spec.map", ".spec.free.x",
	".spec.nope", ".spec.intstr", `.spec.te\.xt`, ".specx.replicas", " .spec.replicas", ".spec[?(@.a)]", ".spec[",
	".spec.when", ".spec.choice", "$.spec", "[0]",
}

// rootKeywords are keywords that random schemas have at their root.
var rootKeywords = []string{
	"description", "title", "format", "maximum", "exclusiveMaximum", "minimum", "maxLength", "minLength", "pattern",
	"maxItems", "minItems", "uniqueItems", "multipleOf",
	"required", "example", "externalDocs", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations", "type",
	"not", "allOf", "anyOf", "oneOf", "nullable", "default", "enum", "maxProperties", "minProperties",
	"additionalProperties", "x-kubernetes-map-type", "x-kubernetes-embedded-resource",
}

var rootValues = map[string]string{
	"description": `"d"`, "title": `"t"`, "format": `"date"`, "maximum": "1", "exclusiveMaximum": "true",
	"minimum": "1", "maxLength": "1", "minLength": "1", "pattern": `"a"`,
	"maxItems": "1", "minItems": "1", "uniqueItems": "false", "multipleOf": "2", "required": `["spec"]`,
	"example": `"e"`, "externalDocs": `{"url":"http://x"}`,
	"x-kubernetes-preserve-unknown-fields": "true", "x-kubernetes-validations": `[{"rule":"has(self.spec)"}]`,
	"type": `"string"`,
	"not":  `{"required":["x"]}`, "allOf": `[{"required":["spec"]}]`, "anyOf": `[{"required":["spec"]}]`,
	"oneOf": `[{"required":["spec"]}]`, "nullable": "true", "default": "{}",
	"enum": "[{}]", "maxProperties": "9", "minProperties": "1", "additionalProperties": "true",
	"x-kubernetes-map-type": `"granular"`, "x-kubernetes-embedded-resource": "true",
}

const specProperties = `"spec":{"type":"object","properties":{"replicas":{"type":"integer"},"text":{"type":"string"},
	"flag":{"type":"boolean"},"num":{"type":"number"},
"list":{"type":"array","items":{"type":"string"}},"map":{"type":"object","additionalProperties":{"type":"string"}},
	"free":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
"intstr":{"x-kubernetes-int-or-string":true},"when":{"type":"string","format":"date-time"},"choice":{"type":"string",
	"enum":["a"]},"a":{"type":"string"},"b":{"type":"string"},"c":{"type":"string"},"d":{"type":"string"}}},
"status":{"type":"object","properties":{"replicas":{"type":"integer"},"selector":{"type":"string"}}}`

// randomVersion returns a version of a CRD with random columns, selectable fields and subresources, valid or not.
func randomVersion(r *rand.Rand, name string, storage bool) string {
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	path := func() string { return jsonPaths[r.IntN(len(jsonPaths))] }
	list := func(n int, item func() string) string {
		all := make([]string, r.IntN(n))
		for i := range all {
			all[i] = item()
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	root := `"type":"object"`
	if r.IntN(2) == 0 {
		keyword := rootKeywords[r.IntN(len(rootKeywords))]
		root = fmt.Sprintf(`%q:%s`, keyword, rootValues[keyword])
		if keyword != "type" {
			root += `,"type":"object"`
		}
	}
	parts := []string{fmt.Sprintf(`"name":%q,"served":true,"storage":%t,"schema":{"openAPIV3Schema":{%s,`+
		`"properties":{%s}}}`, name, storage, root, specProperties)}
	if r.IntN(3) > 0 {
		parts = append(parts, `"additionalPrinterColumns":`+list(3, func() string {
			return fmt.Sprintf(`{"name":%q,"type":%q,"format":%q,"jsonPath":%q,"priority":%d}`, pick("", "A", "A"),
				pick("string", "integer", "number", "boolean", "date", "", "float", "object"),
				pick("", "", "int32", "int64", "float", "double", "byte", "date", "date-time", "password",
					"int16"), path(), r.IntN(3)-1)
		}))
	}
	if r.IntN(3) > 0 {
		parts = append(parts, `"selectableFields":`+list(12, func() string {
			return fmt.Sprintf(`{"jsonPath":%q}`, pick(path(), ".spec.a", ".spec.b", ".spec.c", ".spec.d", ".spec.text",
				".spec.flag"))
		}))
	}
	var subs []string
	if r.IntN(2) == 0 {
		subs = append(subs, `"status":{}`)
	}
	if r.IntN(2) == 0 {
		subs = append(subs, fmt.Sprintf(`"scale":{"specReplicasPath":%q,"statusReplicasPath":%q,`+
			`"labelSelectorPath":%q}`,
			pick(".spec.replicas", path()), pick(".status.replicas", path()), pick("", ".status.selector", path())))
	}
	parts = append(parts, `"subresources":{`+strings.Join(subs, ",")+`}`)
	return "{" + strings.Join(parts, ",") + "}"
}

// TestColumnsAndSubresourcesAgainstUpstream checks that columns, selectable fields and subresources have
// upstream's errors.
// PRN-002 PRN-016 PRN-031 SUB-001 SUB-008 SUB-009 SUB-010 SUB-016 SUB-019 SUB-022 SUB-030
func TestColumnsAndSubresourcesAgainstUpstream(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 7))
	refused, accepted := 0, 0
	for range 600 {
		versions := randomVersion(r, "v1", true)
		if r.IntN(3) == 0 {
			versions += "," + randomVersion(r, "v2", false)
		}
		js := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"name":"shows.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"shows","singular":"show","kind":"Show",
	"listKind":"ShowList"},"versions":[%s]},"status":{"storedVersions":["v1"]}}`, versions)
		crd, err := prepared([]byte(js))
		if err != nil {
			t.Fatalf("%v in %s", err, js)
		}
		want, panicked := recoverPanic(func() field.ErrorList {
			return upstream.ValidateCustomResourceDefinition(t.Context(), crd.Upstream())
		})
		if panicked {
			continue
		}
		got := Create(crd)
		if len(got) > 0 {
			refused++
		} else {
			accepted++
		}
		compare(t, fmt.Sprintf("seed %d: %s", seed, js), got, want)
		if t.Failed() {
			return
		}
	}
	if refused < 50 || accepted < 5 {
		t.Errorf("%d rejected, %d accepted", refused, accepted)
	}
}

// TestColumnAndSubresourceErrors checks the error texts of the documentation for columns, selectable fields and
// subresources.
// PRN-016 PRN-031 SUB-008 SUB-009 SUB-010 SUB-016 SUB-019 SUB-022 SUB-030
func TestColumnAndSubresourceErrors(t *testing.T) {
	for _, c := range []struct{ part, root, field, want string }{
		{part: `"additionalPrinterColumns":[{"name":"A","type":"float","jsonPath":".a"}]`,
			field: "additionalPrinterColumns[0].type", want: "must be one of boolean,date,integer,number,string"},
		{part: `"additionalPrinterColumns":[{"name":"A","type":"string","format":"x","jsonPath":".a"}]`,
			field: "additionalPrinterColumns[0].format",
			want:  "must be one of byte,date,date-time,double,float,int32,int64,password"},
		{part: `"additionalPrinterColumns":[{"name":"A","type":"string"}]`,
			field: "additionalPrinterColumns[0].JSONPath"},
		{part: `"selectableFields":[{"jsonPath":".spec.list"}]`, field: "selectableFields[0].jsonPath",
			want: "must point to a field of type string, boolean or integer. Enum string fields and strings with " +
				"formats are allowed."},
		{part: `"selectableFields":[{"jsonPath":".metadata.name"}]`, field: "selectableFields[0].jsonPath",
			want: "is an invalid path: does not refer to a valid field"},
		{part: `"selectableFields":[{"jsonPath":".spec.a"},{"jsonPath":".spec.a"}]`,
			field: "selectableFields[1].jsonPath"},
		{part: `"subresources":{"scale":{"specReplicasPath":".status.a","statusReplicasPath":".status.b"}}`,
			field: "subresources.scale.specReplicasPath", want: "should be a json path under .spec"},
		{part: `"subresources":{"scale":{"specReplicasPath":".spec.a","statusReplicasPath":".spec.b"}}`,
			field: "subresources.scale.statusReplicasPath", want: "should be a json path under .status"},
		{part: `"subresources":{"scale":{"specReplicasPath":".spec.a","statusReplicasPath":".status.b",` +
			`"labelSelectorPath":".metadata.x"}}`, field: "subresources.scale.labelSelectorPath",
			want: "should be a json path under either .spec or .status"},
		{part: `"subresources":{"scale":{"specReplicasPath":"spec.a","statusReplicasPath":".status.b"}}`,
			field: "subresources.scale.specReplicasPath", want: "must be a simple json path starting with ."},
		{part: `"subresources":{"scale":{"statusReplicasPath":".status.b"}}`,
			field: "subresources.scale.specReplicasPath"},
		{part: `"subresources":{"scale":{"specReplicasPath":".spec.a"}}`,
			field: "subresources.scale.statusReplicasPath"},
		{part: `"subresources":{"status":{}}`, root: `"not":{"required":["x"]},`, field: "openAPIV3Schema",
			want: "fields are allowed at the root of the schema if the status subresource is enabled"},
		{part: `"subresources":{"status":{}}`, root: `"maxProperties":4,`, field: "openAPIV3Schema",
			want: "only [Description Type Format Title Maximum"},
		{part: `"subresources":{"status":{}}`,
			root: `"x-kubernetes-preserve-unknown-fields":true,` +
				`"x-kubernetes-validations":[{"rule":"has(self.spec)"}],"title":"t","required":["spec"],`},
		{part: `"served":true`, root: `"not":{"required":["x"]},`},
	} {
		js := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"name":"shows.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"shows","singular":"show","kind":"Show",
	"listKind":"ShowList"},
"versions":[{"name":"v1","served":true,"storage":true,%s,"schema":{"openAPIV3Schema":{%s"type":"object",
	"properties":{%s}}}}]},"status":{"storedVersions":["v1"]}}`, c.part, c.root, specProperties)
		crd, err := prepared([]byte(strings.Replace(js, `"served":true,"storage":true,"served":true`,
			`"served":true,"storage":true`, 1)))
		if err != nil {
			t.Fatal(err)
		}
		errs := Create(crd)
		if c.field == "" {
			if len(errs) > 0 {
				t.Errorf("%s %s: %v", c.part, c.root, errs)
			}
			continue
		}
		if len(errs) == 0 || !strings.HasSuffix(errs[0].Field, c.field) || !strings.Contains(errs[0].Detail, c.want) {
			t.Errorf("%s %s: %.300v, want %s: %s", c.part, c.root, errs, c.field, c.want)
		}
	}
}
