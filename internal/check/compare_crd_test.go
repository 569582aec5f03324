package check

import (
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

const oldCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, shortNames: [th, tg], categories: [all]}
  conversion: {strategy: None}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {a: {type: string}, count: {type: integer},
    m: {type: integer, minimum: 0}}}}
    subresources: {status: {}, scale: {specReplicasPath: .spec.a, statusReplicasPath: .status.a,
    labelSelectorPath: .status.b}}
    selectableFields: [{jsonPath: .a}]
    additionalPrinterColumns: [{name: A, type: string, jsonPath: .a}]
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, properties: {count: {type: integer}}}}
`

// TestCompareCRD checks the effects of changes of a CRD outside its schemas.
func TestCompareCRD(t *testing.T) {
	const webhook = "conversion: {strategy: Webhook}"
	const v2 = "  - name: v2\n    served: true\n    storage: false\n    schema: {openAPIV3Schema: {type: object, " +
		"properties: {count: {type: integer}}}}\n"
	moved := strings.NewReplacer("storage: true", "storage: false", "storage: false", "storage: true").Replace(oldCRD)
	for name, c := range map[string]struct{ old, now, want string }{
		"nothing":      {oldCRD, oldCRD, ""},
		"scope":        {oldCRD, replaced(t, "scope: Namespaced", "scope: Cluster"), "Breaking spec.scope"},
		"kind":         {oldCRD, replaced(t, "kind: Thing", "kind: Other"), "Breaking spec.names.kind"},
		"singular":     {oldCRD, replaced(t, "singular: thing", "singular: one"), "Breaking spec.names.singular"},
		"a short name": {oldCRD, replaced(t, "[th, tg]", "[th, new]"), "Breaking spec.names.shortNames"},
		"a category":   {oldCRD, replaced(t, "[all]", "[]"), "Breaking spec.names.categories"},
		"not served": {oldCRD, replaced(t, "v2\n    served: true", "v2\n    served: false"),
			"Breaking spec.versions[1].served"},
		"a version": {oldCRD, replaced(t, v2, ""), "Breaking spec.versions"},
		"status":    {oldCRD, replaced(t, "status: {}, ", ""), "Breaking spec.versions[0].subresources"},
		"a new status": {replaced(t, "status: {}, ", ""), oldCRD,
			"Breaking spec.versions[0].subresources.status"},
		"scale": {oldCRD, replaced(t,
			", scale: {specReplicasPath: .spec.a, statusReplicasPath: .status.a,\n"+
				"    labelSelectorPath: .status.b}", ""),
			"Breaking spec.versions[0].subresources"},
		"a path of scale": {oldCRD, replaced(t, "statusReplicasPath: .status.a", "statusReplicasPath: .status.c"),
			"Breaking spec.versions[0].subresources.scale.statusReplicasPath"},
		"no selector": {oldCRD, replaced(t, ",\n    labelSelectorPath: .status.b", ""),
			"Breaking spec.versions[0].subresources.scale.labelSelectorPath"},
		"a selector": {replaced(t, ",\n    labelSelectorPath: .status.b", ""), oldCRD,
			"Compatible spec.versions[0].subresources.scale.labelSelectorPath"},
		"a new scale": {oldCRD, oldCRD +
			"    subresources: {scale: {specReplicasPath: .count, statusReplicasPath: .count}}\n",
			"Breaking spec.versions[1].subresources.scale.specReplicasPath Breaking " +
				"spec.versions[1].subresources.scale.statusReplicasPath"},
		"a selectable field": {oldCRD, replaced(t, "[{jsonPath: .a}]", "[{jsonPath: .count}]"),
			"Breaking spec.versions[0].selectableFields"},
		"a column": {oldCRD, replaced(t, "[{name: A, type: string, jsonPath: .a}]", "[]"),
			"Compatible spec.versions[0].additionalPrinterColumns"},
		"a webhook": {oldCRD, replaced(t, "conversion: {strategy: None}", webhook),
			"Compatible spec.conversion"},
		"no webhook": {replaced(t, "conversion: {strategy: None}", webhook), oldCRD,
			"Breaking spec.conversion"},
		"an annotation": {oldCRD, replaced(t, "metadata: {",
			"metadata: {annotations: {trellis.dev/conversion: '[]'}, "), "Compatible spec.conversion"},
		"no annotation": {replaced(t, "metadata: {", "metadata: {annotations: {trellis.dev/conversion: '[]'}, "),
			oldCRD, "Breaking spec.conversion"},
		"unknown fields": {replaced(t, "  scope:", "  preserveUnknownFields: true\n  scope:"), oldCRD,
			"Breaking spec.preserveUnknownFields"},
		"storage": {oldCRD, moved,
			"Compatible spec.versions[1].storage Breaking spec.versions[1].schema.openAPIV3Schema.properties " +
				"Breaking spec.versions[1].schema.openAPIV3Schema.properties"},
		"storage, converted": {oldCRD, strings.Replace(moved, "conversion: {strategy: None}", webhook, 1),
			"Compatible spec.conversion Compatible spec.versions[1].storage"},
	} {
		var got []string
		for _, change := range compare(yamlTree(t, c.old), yamlTree(t, c.now)) {
			got = append(got, string(change.Effect)+" "+change.Path)
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func replaced(t *testing.T, from, to string) string {
	t.Helper()
	if !strings.Contains(oldCRD, from) {
		t.Fatalf("%q is not in the old CRD", from)
	}
	return strings.Replace(oldCRD, from, to, 1)
}

// TestNewScaleRefuses checks that the engine rejects negative numbers on every update after a CRD gets a scale
// subresource. The comparison reports no change if the old schema already rejected negative numbers.
func TestNewScaleRefuses(t *testing.T) {
	ctx := t.Context()
	s, err := newScratch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	const old = `{type: object, properties: {count: {type: integer}, m: {type: integer, minimum: 0}, other: {type: ` +
		`string}}}`
	if _, _, err := s.create(ctx, schemaCRD(t, old)); err != nil {
		t.Fatal(err)
	}
	thing := yamlTree(t, "{apiVersion: example.com/v1, kind: Thing, metadata: {name: a}, spec: {count: -1, m: 0}}")
	target, err := s.target(ctx, thing)
	if err != nil {
		t.Fatal(err)
	}
	caller, _ := newCaller(target.Version)
	if _, err := s.engine.Create(ctx, target, verb.Body{Tree: thing}, caller); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{".spec.count": "Breaking", ".spec.m": ""} {
		crd := schemaCRD(t, old)
		list(specOf(crd), "versions")[0]["subresources"] = yamlTree(t,
			"{scale: {specReplicasPath: "+path+", statusReplicasPath: .status.x}}")
		found := ""
		for _, c := range compare(schemaCRD(t, old), crd) {
			if strings.HasSuffix(c.Path, "specReplicasPath") {
				found = string(c.Effect)
			}
		}
		if found != want {
			t.Errorf("%s: %q, want %q", path, found, want)
		}
		if _, err := s.update(ctx, crd); err != nil {
			t.Fatal(err)
		}
		_, err := s.update(ctx, yamlTree(t,
			"{apiVersion: example.com/v1, kind: Thing, metadata: {name: a}, spec: {count: -1, m: 0, other: "+path+"}}"))
		if (err != nil) != (want == "Breaking") {
			t.Errorf("%s: got engine error %v, want error: %t", path, err, want == "Breaking")
		}
	}
}
