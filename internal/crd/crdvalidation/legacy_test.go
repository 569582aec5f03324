package crdvalidation

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	upstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
)

// preparedLegacy decodes a v1beta1 CRD and prepares it for validation, as a create does.
func preparedLegacy(data []byte) (CRD, error) {
	var crd apiextensionsv1beta1.CustomResourceDefinition
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &crd); err != nil {
		return CRD{}, err
	}
	crd.Status = apiextensionsv1beta1.CustomResourceDefinitionStatus{}
	apiextensionsv1beta1.SetObjectDefaults_CustomResourceDefinition(&crd)
	crd.CreationTimestamp, crd.UID = metav1.Now(), "u"
	js, err := marshal(&crd)
	if err != nil {
		return CRD{}, err
	}
	return ReadLegacy(js)
}

func marshal(v any) ([]byte, error) {
	js, err := yaml.Marshal(v)
	if err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(js)
}

// lenient returns an old CRD for upstream's validation of an update to crd. Because of the violations in the old CRD,
// this validation is as lenient as v1beta1. The old CRD has a version without a schema, has a schema that is not
// structural and has an unknown type, and preserves unknown fields.
func lenient(crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	preserve := true
	odd := &apiextensions.JSONSchemaProps{Properties: map[string]apiextensions.JSONSchemaProps{"a": {Type: "odd"}}}
	return &apiextensions.CustomResourceDefinition{ObjectMeta: crd.ObjectMeta,
		Spec: apiextensions.CustomResourceDefinitionSpec{
			Group: crd.Spec.Group, Names: crd.Spec.Names, Scope: crd.Spec.Scope, PreserveUnknownFields: &preserve,
			Versions: []apiextensions.CustomResourceDefinitionVersion{{Name: "without"},
				{Name: "lenient", Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: odd}}},
		}}
}

func upstreamLegacyErrors(t *testing.T, crd CRD) (errs field.ErrorList, panicked bool) {
	return recoverPanic(func() field.ErrorList {
		return upstream.ValidateCustomResourceDefinitionUpdate(t.Context(), crd.Upstream(),
			lenient(crd.Upstream()))
	})
}

// comparableErrors omits intended differences from upstream, and errors in metadata, because an update does not
// validate the name.
func comparableErrors(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		return e.Detail == "additionalProperties cannot be set to false" || strings.HasPrefix(e.Field, "metadata.")
	})
}

// legacyBase is a CRD in which the versions share all settings.
const legacyBase = `{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition",
	"metadata":{"name":"crontabs.stable.example.com"},
"spec":{"group":"stable.example.com","names":{"plural":"crontabs","kind":"CronTab","shortNames":["ct"]},
"validation":{"openAPIV3Schema":{"properties":{"spec":{"required":["image"],"properties":{"image":{"type":"string",
	"pattern":"a"},"n":{"type":"integer","minimum":1},
 "ports":{"type":"array","items":{"properties":{"name":{"type":"string"}}}},"map":{"type":"object",
 "additionalProperties":{"type":"string"}}}},"status":{"type":"object"}}}},
"subresources":{"status":{},"scale":{"specReplicasPath":".spec.n","statusReplicasPath":".status.n"}},
"additionalPrinterColumns":[{"name":"N","type":"integer","JSONPath":".spec.n"}],
"versions":[{"name":"v1","served":true,"storage":true},{"name":"v1beta1","served":true,"storage":false,
	"deprecated":true}]}}`

// legacyVersioned is a CRD in which each version has its own settings. Its schemas are structural, and it has
// defaults and a webhook.
const legacyVersioned = `{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition",
	"metadata":{"name":"crontabs.stable.example.com"},
"spec":{"group":"stable.example.com","version":"v1","scope":"Cluster","names":{"plural":"crontabs","kind":"CronTab"},
	"preserveUnknownFields":false,
"conversion":{"strategy":"Webhook","webhookClientConfig":{"service":{"name":"n","namespace":"ns"}}},
"versions":[
 {"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",
 "properties":{"spec":{"type":"object","properties":{"n":{"type":"integer","default":1},
  "any":{"x-kubernetes-int-or-string":true}}}}}},"subresources":{"status":{}},
  "additionalPrinterColumns":[{"name":"N","type":"integer","JSONPath":".spec.n"}]},
 {"name":"v1beta1","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object",
 "x-kubernetes-preserve-unknown-fields":true}}}]}}`

var legacyKeywords = []string{"validation", "subresources", "additionalPrinterColumns", "version", "versions",
	"JSONPath", "webhookClientConfig", "openAPIV3Schema"}

// legacyMutations are values that replace existing values of a CRD or are added to it.
var legacyMutations = []any{
	map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}, map[string]any{"status": map[string]any{}},
	[]any{map[string]any{"name": "N", "type": "integer", "JSONPath": ".spec.n"}}, "v1", "v1beta1", "v9", nil,
}

// mutateLegacy changes a random position.
func mutateLegacy(r *rand.Rand, crd map[string]any) {
	if r.IntN(2) == 0 {
		crd["spec"] = mutate(r, crd["spec"])
		return
	}
	spec, _ := crd["spec"].(map[string]any)
	places := []map[string]any{spec}
	versions, _ := spec["versions"].([]any)
	for _, v := range versions {
		if v, ok := v.(map[string]any); ok {
			places = append(places, v)
		}
	}
	at := places[r.IntN(len(places))]
	if at != nil {
		at[append(legacyKeywords, "schema",
			"preserveUnknownFields")[r.IntN(len(legacyKeywords)+2)]] = legacyMutations[r.IntN(len(legacyMutations))]
	}
}

// TestLegacyAgainstUpstream checks that valid and invalid CRDs of v1beta1 have the errors of upstream's validation in
// its lenient form.
// SCH-002 VAL-015 DEF-005 CNV-065 CNV-067 VER-012 VER-013
func TestLegacyAgainstUpstream(t *testing.T) {
	n := 600
	if testing.Short() {
		n = 200
	}
	refused, accepted, structural := 0, 0, 0
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 3))
		var tree map[string]any
		base := []string{legacyBase, legacyVersioned}[seed%2]
		if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(base), &tree); err != nil {
			t.Fatal(err)
		}
		for range r.IntN(4) {
			mutateLegacy(r, tree)
		}
		crd, err := preparedLegacy(mustJSON(t, tree))
		if err != nil {
			continue // rejected by the decoder
		}
		want, panicked := upstreamLegacyErrors(t, crd)
		if panicked {
			continue
		}
		got := Create(crd)
		switch {
		case len(got) > 0:
			refused++
		case preservesUnknownFields(&crd.Spec):
			accepted++
		default:
			structural++
		}
		compare(t, fmt.Sprintf("seed %d: %s", seed, mustJSON(t, tree)), comparableErrors(got), comparableErrors(want))
		if t.Failed() {
			return
		}
	}
	if refused < n/8 || accepted < n/30 || structural < n/30 {
		t.Errorf("%d rejected, %d accepted that preserve unknown fields, %d that do not", refused, accepted, structural)
	}
}

// TestLegacyFilesAreAccepted checks that v1beta1 CRDs from the documentation and from real projects are accepted,
// as in upstream.
// CNV-069 CRD-034
func TestLegacyFilesAreAccepted(t *testing.T) {
	for pattern, least := range map[string]int{
		outside.Path("corpus/legacy-v1beta1/*.yaml"):          12,
		outside.Path("spec/examples/0[289]-*/*v1beta1*.yaml"): 7,
	} {
		files, _ := filepath.Glob(pattern)
		if len(files) == 0 {
			t.Skipf("%s is not there: ../shared, beside the module", pattern)
		}
		seen := 0
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(data), "apiVersion: apiextensions.k8s.io/v1beta1") {
				continue
			}
			seen++
			js, err := yaml.YAMLToJSON(data)
			if err != nil {
				t.Fatal(err)
			}
			crd, err := preparedLegacy(js)
			if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			want, _ := upstreamLegacyErrors(t, crd)
			compare(t, f, Create(crd), comparableErrors(want))
			if errs := Create(crd); len(errs) > 0 {
				t.Errorf("%s: %v", f, errs)
			}
		}
		if seen < least {
			t.Errorf("%s: only %d CRDs", pattern, seen)
		}
	}
}

// TestLegacyThenV1 checks an update through v1 of a CRD that was created through v1beta1. It need not satisfy
// requirements of v1 that the old state violates.
// CNV-067
func TestLegacyThenV1(t *testing.T) {
	legacy, err := preparedLegacy([]byte(legacyBase))
	if err != nil {
		t.Fatal(err)
	}
	js := strings.NewReplacer(`"shortNames":["ct"]`, `"shortNames":["c"],"singular":"crontab","listKind":"CronTabList"`,
		`"name":"v1",`, `"name":"v1","schema":{"openAPIV3Schema":{"properties":{"spec":{}}}},`,
		`"name":"v1beta1",`, `"name":"v1beta1","schema":{"openAPIV3Schema":{}},`,
		`"spec":{"group"`, `"spec":{"preserveUnknownFields":true,"scope":"Namespaced","group"`, `"metadata"`,
		`"status":{"storedVersions":["v1"]},"metadata"`).Replace(legacyBase)
	v1, err := Read([]byte(js))
	if err != nil {
		t.Fatal(err)
	}
	if errs := Create(v1); len(errs) == 0 {
		t.Error("a new v1 CRD without a structural schema was accepted")
	}
	if errs := Update(v1, legacy); len(errs) > 0 {
		t.Errorf("update through v1: got errors %v", errs)
	}
}

// TestStatusKeepsStorageVersion checks that status.storedVersions keeps the storage version and only lists
// existing versions.
// VER-042
func TestStatusKeepsStorageVersion(t *testing.T) {
	crd := func(stored string) CRD {
		c, err := Read([]byte(strings.Replace(base, `"metadata":{`,
			`"status":{"storedVersions":`+stored+`},"metadata":{`, 1)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for stored, want := range map[string]string{
		`["v1"]`: "", `["v1beta1","v1"]`: "",
		`["v1beta1"]`: `status.storedVersions: Invalid value: ["v1beta1"]: must have the storage version v1`,
		`[]`:          `status.storedVersions: Invalid value: []: must have at least one stored version`,
		`["v1","v0"]`: `status.storedVersions[1]: Invalid value: "v0": missing from spec.versions; v0 was ` +
			`previously a storage version, and must remain in spec.versions until a storage migration ensures no ` +
			`data remains persisted in v0 and removes v0 from status.storedVersions`,
	} {
		got := ""
		if errs := Status(crd(stored), crd(`["v1beta1","v1"]`)); len(errs) > 0 {
			got = errs[0].Error()
		}
		if got != want {
			t.Errorf("%s: %q", stored, got)
		}
		if errs := Status(crd(stored), crd(stored)); len(errs) > 0 {
			t.Errorf("unchanged status with %s: got errors %v", stored, errs)
		}
	}
}
