package crdvalidation

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	upstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
)

// prepared decodes a CRD and prepares it for validation, as a create does.
func prepared(data []byte) (CRD, error) {
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &v1); err != nil {
		return CRD{}, err
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
	if c := v1.Spec.Conversion; c.Webhook != nil && c.Webhook.ClientConfig != nil &&
		c.Webhook.ClientConfig.Service != nil {
		apiextensionsv1.SetDefaults_ServiceReference(c.Webhook.ClientConfig.Service)
	}
	v1.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
	for _, v := range v1.Spec.Versions {
		if v.Storage {
			v1.Status.StoredVersions = []string{v.Name}
			break
		}
	}
	v1.CreationTimestamp = metav1.Now()
	v1.UID = "u"
	data, err := json.Marshal(v1)
	if err != nil {
		return CRD{}, err
	}
	return Read(data)
}

func corpus(t testing.TB) []string {
	files, _ := filepath.Glob(outside.Path("corpus/crds/*/*.yaml"))
	if len(files) == 0 {
		t.Skip("the corpus of real CRDs is not there: ../shared/corpus/crds, beside the module")
	}
	return files
}

var selfType = regexp.MustCompile(`selfType\d+`)

// comparableTexts returns the sorted texts of errors. It omits errors that this package does not report, such as
// those of metadata other than the name. It also replaces type names that upstream invents.
func comparableTexts(errs field.ErrorList) (out []string) {
	typeless := slices.ContainsFunc(errs, func(e *field.Error) bool { // if a type is unknown, every default is invalid
		return e.Type == field.ErrorTypeNotSupported && strings.HasSuffix(e.Field, ".type")
	})
	for _, e := range errs {
		switch {
		case typeless && strings.Contains(e.Field, ".default"):
		case strings.HasPrefix(e.Field, "metadata.") && !strings.Contains(e.Detail, "must be spec.names.plural") &&
			!strings.Contains(e.Field, "api-approved"):
		case strings.HasPrefix(e.Detail, "contributed to"): // the choice among equal costs is random
			out = append(out, e.Detail)
		default:
			out = append(out, selfType.ReplaceAllString(e.Error(), "selfType"))
		}
	}
	slices.Sort(out)
	return out
}

func compare(t *testing.T, what string, got, want field.ErrorList) {
	t.Helper()
	if g, w := comparableTexts(got), comparableTexts(want); !slices.Equal(g, w) {
		t.Errorf("%s:\nours\n\t%s\nupstream\n\t%s", what, strings.Join(g, "\n\t"), strings.Join(w, "\n\t"))
	}
}

// wholeCorpus reports whether tests use the whole corpus instead of a sample. -v does not enable it, because
// .ci/run sets -v for every test.
func wholeCorpus() bool { return os.Getenv("TRELLIS_CORPUS") == "all" }

// TestCorpusIsAccepted checks that every real CRD is accepted and has upstream's result.
// CRD-005, CRD-036
func TestCorpusIsAccepted(t *testing.T) {
	for i, f := range corpus(t) {
		if i%5 != 0 && !wholeCorpus() {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		js, err := yaml.YAMLToJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		crd, err := prepared(js)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		if errs := Create(crd); len(errs) > 0 {
			t.Errorf("%s: %v", f, errs)
		}
		if errs := Update(crd, crd); len(errs) > 0 {
			t.Errorf("%s: %v", f, errs)
		}
	}
}

// ruleMutations are changes of a rule. Each of them makes the rule invalid or sets more of its fields.
var ruleMutations = []map[string]any{
	{"rule": "self.nope == 1"}, {"rule": "self =="}, {"rule": "1 + 1"}, {"rule": "self == oldSelf"},
	{"rule": "oldSelf.hasValue() && oldSelf.value() == self"},
	{"rule": "has(self)"}, {"messageExpression": "self"}, {"messageExpression": "'a' + 'b'"},
	{"messageExpression": "1"}, {"optionalOldSelf": true}, {"optionalOldSelf": false},
	{"fieldPath": ".nope"}, {"fieldPath": ""}, {"fieldPath": ".metadata['x']"}, {"reason": "FieldValueRequired"},
	{"rule": "size(self) < 3"}, {"rule": "self.all(x, self.all(y, self.exists(z, z == x)))"},
	{"rule": "self.matches('[')"}, {"rule": "[1, 'a'].size() == 2"}, {"rule": "type(self) == timestamp"},
	{"rule": "duration('1x') == duration('1s')"},
}

var lowerCost = regexp.MustCompile(`string\(|filter\(`)

// mutateRules changes or adds one random rule below v, or removes the bounds of a list or string.
func mutateRules(r *rand.Rand, v any) {
	var schemas []map[string]any
	for _, c := range containers(v) {
		if m, ok := c.(map[string]any); ok && (m["type"] != nil || m["x-kubernetes-validations"] != nil) {
			schemas = append(schemas, m)
		}
	}
	if len(schemas) == 0 {
		return
	}
	var ruled []map[string]any
	for _, m := range schemas {
		if m["x-kubernetes-validations"] != nil {
			ruled = append(ruled, m)
		}
	}
	change := ruleMutations[r.IntN(len(ruleMutations))]
	switch n := r.IntN(4); {
	case n == 0 || len(ruled) == 0:
		rule := map[string]any{"rule": "true"}
		maps.Copy(rule, change)
		schemas[r.IntN(len(schemas))]["x-kubernetes-validations"] = []any{rule}
	case n == 1:
		m := schemas[r.IntN(len(schemas))]
		for _, k := range []string{"maxItems", "maxLength", "maxProperties", "enum", "x-kubernetes-list-type",
			"x-kubernetes-list-map-keys"} {
			delete(m, k)
		}
	default:
		list, _ := ruled[r.IntN(len(ruled))]["x-kubernetes-validations"].([]any)
		if len(list) > 0 {
			if rule, ok := list[r.IntN(len(list))].(map[string]any); ok {
				maps.Copy(rule, change)
			}
		}
	}
}

// TestCorpusRulesAgainstUpstream checks that real CRDs with random changes of their rules, and updates to them,
// have upstream's errors.
// VAL-048, VAL-150, VAL-167
func TestCorpusRulesAgainstUpstream(t *testing.T) {
	every, mutants, refused := 48, 2, 0
	if wholeCorpus() {
		every, mutants = 1, 6
	}
	for i, f := range corpus(t) {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 100_000 && every > 1 || !strings.Contains(string(data), "x-kubernetes-validations") &&
			i%every != 0 {
			continue
		}
		if lowerCost.Match(data) { // the estimates differ for these functions
			continue
		}
		js, err := yaml.YAMLToJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		old, err := prepared(js)
		if err != nil || i%max(1, every/4) != 0 {
			continue
		}
		for seed := range mutants {
			var tree map[string]any
			if err := kjson.UnmarshalCaseSensitivePreserveInts(js, &tree); err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(uint64(seed), uint64(i)))
			for range seed {
				mutateRules(r, tree["spec"])
			}
			crd, err := prepared(mustJSON(t, tree))
			if err != nil {
				continue
			}
			errs := Create(crd)
			refused += min(len(errs), 1)
			what := fmt.Sprintf("%s, seed %d", f, seed)
			compare(t, what, errs, upstream.ValidateCustomResourceDefinition(t.Context(), crd.Upstream()))
			compare(t, what+" (update)", Update(crd, old), upstream.ValidateCustomResourceDefinitionUpdate(t.Context(),
				crd.Upstream(), old.Upstream()))
			compare(t, what+" (same)", Update(crd, crd), upstream.ValidateCustomResourceDefinitionUpdate(t.Context(),
				crd.Upstream(), crd.Upstream()))
			if t.Failed() {
				return
			}
		}
	}
	if refused == 0 {
		t.Error("no changed CRD was rejected")
	}
	t.Logf("%d mutants refused", refused)
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	js, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// base is a CRD that uses most features.
const base = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
	"metadata":{"name":"crontabs.stable.example.com"},
"spec":{"group":"stable.example.com","scope":"Namespaced","names":{"plural":"crontabs","singular":"crontab",
	"kind":"CronTab","shortNames":["ct"],"categories":["all"]},
"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1","v1beta1"],
	"clientConfig":{"service":{"name":"n","namespace":"ns","path":"/a/b"}}}},
"versions":[
{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","required":["spec"],
	"properties":{
 "metadata":{"type":"object","properties":{"name":{"type":"string","pattern":"a"}}},
 "spec":{"type":"object","x-kubernetes-validations":[{"rule":"self.replicas > 1","message":"m",
 "reason":"FieldValueInvalid","fieldPath":".replicas"}],"properties":{
  "replicas":{"type":"integer","format":"int32","default":1},
  "any":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]},
  "ports":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],
  "items":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"port":{"type":"integer"}}}},
  "set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
  "free":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
  "embedded":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true,
  "properties":{"kind":{"type":"string"}}},
  "map":{"type":"object","x-kubernetes-map-type":"granular","additionalProperties":{"type":"string"}}},
  "oneOf":[{"required":["any"]},{"properties":{"set":{"minItems":1}}}],"not":{"properties":{"replicas":{"enum":[7]}}}},
 "status":{"type":"object","properties":{"replicas":{"type":"integer"},"selector":{"type":"string"}}}}}},
 "selectableFields":[{"jsonPath":".spec.replicas"}],
 "additionalPrinterColumns":[{"name":"R","type":"integer","format":"int32","jsonPath":".spec.replicas"}],
 "subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas",
 "labelSelectorPath":".status.selector"}}},
{"name":"v1beta1","served":true,"storage":false,"deprecated":true,"deprecationWarning":"old",
	"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

func mutated(t testing.TB, f func(map[string]any)) []byte {
	var crd map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(base), &crd); err != nil {
		t.Fatal(err)
	}
	f(crd)
	js, err := yaml.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	if js, err = yaml.YAMLToJSON(js); err != nil {
		t.Fatal(err)
	}
	return js
}

// mutations are values that random changes set or add.
var mutations = []any{
	nil, true, false, "", ".", "x", "X", "a.b", "-a", "string", "object", "array", "integer", "null", "map", "set",
	"atomic", "granular",
	"Cluster", "None", "Webhook", "http://u:p@h?q#f", ".spec", ".spec.x", "[a", "(", "a\nb", "$", "v1", "k8s.io",
	"nope.k8s.io",
	int64(0), int64(-1), int64(70000), map[string]any{}, []any{}, map[string]any{"type": "object"},
	map[string]any{"type": "string", "nullable": true},
	[]any{"name"}, []any{"name", "name"}, []any{"v7"}, []any{map[string]any{"type": "integer"},
		map[string]any{"type": "string"}},
	map[string]any{"name": map[string]any{"type": "object"}},
	map[string]any{"metadata": map[string]any{"type": "object"}},
	[]any{map[string]any{"rule": "", "message": " "}},
	[]any{map[string]any{"properties": map[string]any{"unknown": map[string]any{"minLength": int64(1)}}}},
	[]any{map[string]any{"jsonPath": ".metadata.name"}, map[string]any{"jsonPath": ".spec.map.x"},
		map[string]any{"jsonPath": ".spec.map.x"}, map[string]any{"jsonPath": ".spec[0]"},
		map[string]any{"jsonPath": ""}},
}

var keywords = []string{
	"type", "nullable", "default", "items", "properties", "additionalProperties", "allOf", "anyOf", "oneOf", "not",
	"pattern", "title",
	"description", "id", "$ref", "$schema", "definitions", "dependencies", "patternProperties", "additionalItems",
	"uniqueItems", "required",
	"x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-embedded-resource",
	"x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string", "x-kubernetes-validations",
	"preserveUnknownFields",
	"group", "scope", "strategy", "url", "service", "path", "port", "caBundle", "conversionReviewVersions", "name",
	"jsonPath", "format",
	"listKind", "singular", "shortNames", "categories", "deprecationWarning", "deprecated", "storage", "schema",
	"fieldPath", "message", "reason",
}

// containers returns v and all objects and arrays below it.
func containers(v any) []any {
	var out []any
	switch v := v.(type) {
	case map[string]any:
		out = append(out, v)
		for _, k := range slices.Sorted(maps.Keys(v)) {
			out = append(out, containers(v[k])...)
		}
	case []any:
		out = append(out, v)
		for i := range v {
			out = append(out, containers(v[i])...)
		}
	}
	return out
}

// mutate changes one random position below v.
func mutate(r *rand.Rand, v any) any {
	pick := func() any { return runtime.DeepCopyJSONValue(mutations[r.IntN(len(mutations))]) }
	all := containers(v)
	switch c := all[r.IntN(len(all))].(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(c))
		switch n := r.IntN(5); {
		case n < 2 || len(keys) == 0:
			c[keywords[r.IntN(len(keywords))]] = pick()
		case n == 2:
			delete(c, keys[r.IntN(len(keys))])
		default:
			c[keys[r.IntN(len(keys))]] = pick()
		}
	case []any:
		if len(c) == 0 {
			return v
		}
		i := r.IntN(len(c))
		c[i] = pick()
		if r.IntN(2) == 0 {
			c[i] = runtime.DeepCopyJSONValue(c[r.IntN(len(c))])
		}
	}
	return v
}

// recoverPanic calls f and reports whether it panicked. Upstream panics for some paths.
func recoverPanic(f func() field.ErrorList) (errs field.ErrorList, panicked bool) {
	defer func() { panicked = recover() != nil }()
	return f(), false
}

// TestRandomCRDsAgainstUpstream checks that random invalid CRDs have upstream's errors.
// CRD-036, CRD-037, CRD-038, CRD-039, CRD-046
func TestRandomCRDsAgainstUpstream(t *testing.T) {
	n := 500
	if testing.Short() {
		n = 150
	}
	refused := 0
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		js := mutated(t, func(crd map[string]any) {
			for range 1 + r.IntN(3) {
				crd["spec"] = mutate(r, crd["spec"])
			}
		})
		crd, err := prepared(js)
		if err != nil {
			continue // rejected by the decoder
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
		}
		compare(t, fmt.Sprintf("seed %d: %s", seed, js), got, want)
		if t.Failed() {
			return
		}
	}
	if refused < n/8 {
		t.Errorf("only %d of %d changed CRDs were rejected", refused, n)
	}
}

// TestRandomUpdatesAgainstUpstream checks that random updates have upstream's errors, for established and other
// CRDs, and for old states that are invalid.
// CRD-042, CRD-048
func TestRandomUpdatesAgainstUpstream(t *testing.T) {
	n := 250
	if testing.Short() {
		n = 80
	}
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 2))
		change := func(times int) (CRD, error) {
			return prepared(mutated(t, func(crd map[string]any) {
				for range times {
					crd["spec"] = mutate(r, crd["spec"])
				}
			}))
		}
		old, err := change(r.IntN(3))
		if err != nil {
			continue
		}
		crd, err := change(r.IntN(3))
		if err != nil {
			continue
		}
		if r.IntN(2) == 0 {
			old.Status.Conditions = []apiextensions.CustomResourceDefinitionCondition{{Type: apiextensions.Established,
				Status: apiextensions.ConditionTrue}}
		}
		old.ResourceVersion, crd.ResourceVersion = "1", "1"
		crd.CreationTimestamp = old.CreationTimestamp
		want, panicked := recoverPanic(func() field.ErrorList {
			return upstream.ValidateCustomResourceDefinitionUpdate(t.Context(), crd.Upstream(),
				old.Upstream())
		})
		if panicked {
			continue
		}
		compare(t, fmt.Sprintf("seed %d", seed), Update(crd, old), want)
		if t.Failed() {
			return
		}
	}
}
