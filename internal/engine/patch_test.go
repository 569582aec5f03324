package engine

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	jsonPatch      = types.JSONPatchType
	mergePatch     = types.MergePatchType
	strategicPatch = types.StrategicMergePatchType
	applyPatch     = types.ApplyYAMLPatchType
)

// TestPatchKinds checks JSON, merge and strategic merge patches, and that a custom kind has no strategic merge
// patch (CRD-055).
func TestPatchKinds(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	next := f.mustPatch(f.cron("my-cron"), jsonPatch, `[{"op":"replace","path":"/spec/image","value":"one"}]`)
	equal(t, "image", valueAt(next, "spec.image"), "one")
	next = f.mustPatch(f.cron("my-cron"), mergePatch, `{"spec":{"image":"two","cronSpec":null}}`)
	equal(t, "spec", next["spec"], map[string]any{"image": "two"})
	equal(t, "generation", valueAt(next, "metadata.generation"), 3)
	_, err := f.patch(f.cron("my-cron"), strategicPatch, `{"spec":{"image":"x"}}`)
	f.expectStatus(err, 415, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+
			"application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a","finalizers":["example.com/a"]}}`)
	next = f.mustPatch(f.configMap("a"), strategicPatch, `{"metadata":{"finalizers":["example.com/b"]}}`)
	equal(t, "finalizers", valueAt(next, "metadata.finalizers"), []string{"example.com/b", "example.com/a"})
}

// TestStrategicPatchKeepsTheKind checks that a strategic merge patch cannot change kind and apiVersion, as in
// upstream. A merge patch with another kind is rejected (CRD-055).
func TestStrategicPatchKeepsTheKind(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
	for i, of := range []string{`"kind":"Deployment"`, `"apiVersion":"apps/v1"`,
		`"kind":"Scale","apiVersion":"autoscaling/v1"`, `"kind":null,"apiVersion":null`, `"kind":""`} {
		next := f.mustPatch(f.configMap("a"), strategicPatch, fmt.Sprintf(`{%s,"data":{"i":"%d"}}`, of, i))
		equal(t, of, []any{next["apiVersion"], next["kind"], valueAt(next, "data.i")},
			[]any{"v1", "ConfigMap", fmt.Sprint(i)})
	}
	_, err := f.patch(f.configMap("a"), strategicPatch, `{"kind":5}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		`patch: Invalid value: "map[kind:5]": cannot convert int64 to string`)
	_, err = f.patch(f.configMap("a"), mergePatch, `{"kind":"Deployment"}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "")
}

// TestStrategicPatchTypeErrors checks that the error for a strategic merge patch with a wrong type quotes the
// patch and has upstream's cause.
func TestStrategicPatchTypeErrors(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
	for patch, want := range map[string]string{
		`{"metadata":{"labels":"invalid"}}`: `"map[metadata:map[labels:invalid]]": cannot restore map from string`,
		`{"data":{"a":{"b":1}}}`:            `"map[data:map[a:map[b:1]]]": `,
		`{"immutable":"yes"}`:               `"map[immutable:yes]": `,
		`{"metadata":{"generation":"x"}}`:   `"map[metadata:map[generation:x]]": `,
	} {
		patched := f.get(f.configMap("a"))
		sent, _, err := object.DecodeJSON([]byte(patch))
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(patched, sent)
		upstream := runtime.DefaultUnstructuredConverter.FromUnstructured(patched, &corev1.ConfigMap{})
		_, err = f.patch(f.configMap("a"), strategicPatch, patch)
		f.expectStatus(err, 422, metav1.StatusReasonInvalid, want)
		f.expectStatus(err, 422, metav1.StatusReasonInvalid, upstream.Error())
	}
}

// TestInvalidPatches checks the errors for invalid patches (CRD-052, CRD-053, CRD-055).
func TestInvalidPatches(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	for _, c := range []struct {
		kind types.PatchType
		data string
		code int32
		why  metav1.StatusReason
		text string
	}{
		{mergePatch, `{`, 400, metav1.StatusReasonBadRequest, "invalid JSON patch"},
		{mergePatch, `{"metadata":{"name":"other"}}`, 400, metav1.StatusReasonBadRequest,
			"the name of the object (other) does not match the name on the URL (my-cron)"},
		{mergePatch, `{"metadata":{"resourceVersion":"1"}}`, 409, metav1.StatusReasonConflict,
			"the object has been modified"},
		{mergePatch, `{"metadata":{"uid":"x"}}`, 422, metav1.StatusReasonInvalid,
			`metadata.uid: Invalid value: "x": field is immutable`},
		{mergePatch, `{"kind":"Foo"}`, 422, metav1.StatusReasonInvalid,
			`Foo.stable.example.com "my-cron" is invalid: kind: Invalid value: "Foo": must be CronTab`},
		{mergePatch, `{"kind":null}`, 422, metav1.StatusReasonInvalid,
			`Object 'Kind' is missing in '{"apiVersion":"stable.example.com/v1",`},
		{jsonPatch, `[{"op":"replace","path":"","value":{"a":1}}]`, 422, metav1.StatusReasonInvalid,
			` "" is invalid: patch: Invalid value: "{\"a\":1}": Object 'Kind' is missing in '{"a":1}'`},
		{mergePatch, `{"spec":{"foo":1}}`, 422, metav1.StatusReasonInvalid,
			`strict decoding error: unknown field "spec.foo"`},
		{jsonPatch, `[{"op":"test","path":"/spec/image","value":"no"}]`, 422, metav1.StatusReasonInvalid,
			"the server rejected our request due to an error in our request"},
		{jsonPatch, `[{"op":"add","path":"/spec/image","value":"a","nosuch":1}]`, 422, metav1.StatusReasonInvalid,
			`json patch unknown field "[0].nosuch"`},
	} {
		_, err := f.patch(f.cron("my-cron"), c.kind, c.data)
		f.expectStatus(err, c.code, c.why, c.text)
	}
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
	_, err := f.patch(f.configMap("a"), mergePatch, `{"kind":"Secret"}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, ` "" is invalid: patch: Invalid value: `)
	_, err = f.patch(f.cron("none"), mergePatch, `{}`)
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, `crontabs.stable.example.com "none" not found`)
	_, _, err = f.Patch(
		f.ctx,
		f.cron("my-cron"),
		verb.Patch{Type: mergePatch, Data: []byte(`{}`), Force: true},
		f.caller,
	)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "force: Forbidden: may not be specified for non-apply patch")
	f.caller.FieldManager = ""
	_, err = f.patch(f.cron("my-cron"), applyPatch, `{}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "fieldManager: Required value: is required for apply patch")
}

// TestPatchKeepsTheVersion checks that a patch cannot set the apiVersion to another version of the kind (CRD-052).
func TestPatchKeepsTheVersion(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	v2 := f.target("stable.example.com", "v2", "crontabs", "default")
	v2.Name = "my-cron"
	for _, c := range []struct {
		target       verb.Target
		other, right string
	}{{f.cron("my-cron"), "v2", "v1"}, {v2, "v1", "v2"}} {
		_, err := f.patch(c.target, mergePatch, `{"apiVersion":"stable.example.com/`+c.other+`"}`)
		f.expectStatus(err, 422, metav1.StatusReasonInvalid, `apiVersion: Invalid value: "stable.example.com/`+c.other+
			`": must be stable.example.com/`+c.right)
	}
}

// TestPatchWarnings checks the warnings for unknown and duplicate fields in a patch (CRD-059).
func TestPatchWarnings(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	f.caller.Validation = "Warn"
	f.mustPatch(f.cron("my-cron"), mergePatch, `{"spec":{"foo":1,"image":"a","image":"b"}}`)
	equal(t, "warnings", f.warnings, []string{`duplicate field "spec.image"`, `unknown field "spec.foo"`})
}

const applyConfig = `apiVersion: stable.example.com/v1
kind: CronTab
metadata:
  name: applied
spec:
  image: one
  ports:
  - name: a
    port: 1
`

// TestApply checks an apply that creates an object, an apply with a conflict, an apply with force, and an apply
// that changes nothing (CRD-056).
func TestApply(t *testing.T) {
	f := newFixture(t)
	o, created, err := f.Patch(
		f.ctx,
		f.cron("applied"),
		verb.Patch{Type: applyPatch, Data: []byte(applyConfig)},
		f.caller,
	)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	first := treeOf(t, o)
	equal(t, "generation", valueAt(first, "metadata.generation"), 1)
	entry := valueAt(first, "metadata.managedFields").([]any)[0].(object.Tree)
	equal(t, "entry", []any{entry["manager"], entry["operation"]}, []any{"tester", "Apply"})
	f.caller.FieldManager = "other"
	second := strings.ReplaceAll(strings.ReplaceAll(applyConfig, "image: one", "image: two"), "name: a\n    port: 1",
		"name: b\n    port: 2")
	_, err = f.patch(f.cron("applied"), applyPatch, second)
	s := f.expectStatus(err, 409, metav1.StatusReasonConflict,
		`Apply failed with 1 conflict: conflict with "tester": .spec.image`)
	equal(t, "causes", s.Details.Causes,
		[]metav1.StatusCause{{Type: "FieldManagerConflict", Message: `conflict with "tester"`, Field: ".spec.image"}})
	o, created, err = f.Patch(f.ctx, f.cron("applied"), verb.Patch{Type: applyPatch, Data: []byte(second), Force: true},
		f.caller)
	if err != nil || created {
		t.Fatalf("created %v, %v", created, err)
	}
	equal(t, "spec", treeOf(t, o)["spec"], map[string]any{"image": "two",
		"ports": []any{map[string]any{"name": "a", "port": 1}, map[string]any{"name": "b", "port": 2}}})
	before := f.Store.Head().Revision()
	if _, _, err := f.Patch(f.ctx, f.cron("applied"), verb.Patch{Type: applyPatch, Data: []byte(second), Force: true},
		f.caller); err != nil {
		t.Fatal(err)
	}
	equal(t, "changes of a repeated apply", len(f.eventsAfter(before)), 0)
}

// TestInvalidApplies checks the errors for invalid applies (CRD-056).
func TestInvalidApplies(t *testing.T) {
	f := newFixture(t)
	head := "apiVersion: stable.example.com/v1\nkind: CronTab\n"
	for _, c := range []struct {
		data string
		code int32
		why  metav1.StatusReason
		text string
	}{
		{head + "metadata: {name: x, uid: u}", 409, metav1.StatusReasonConflict,
			"uid mismatch: the provided object specified uid u, and no existing object was found"},
		{head + "metadata: {name: other}", 400, metav1.StatusReasonBadRequest,
			"the name of the object (other) does not match the name on the URL (x)"},
		{head + "metadata: {}", 400, metav1.StatusReasonBadRequest, "name must be provided"},
		{head + "metadata: {name: x}\nspec: {foo: 1}", 500, metav1.StatusReasonUnknown,
			".spec.foo: field not declared in schema"},
		{"apiVersion: v1\nkind: CronTab", 400, metav1.StatusReasonBadRequest, "invalid object type"},
		{"{", 400, metav1.StatusReasonBadRequest, "error decoding patch"},
		{head + "metadata: {name: x, resourceVersion: x1}", 500, metav1.StatusReasonUnknown, "invalid syntax"},
		{head + "metadata: {name: x, name: x}", 400, metav1.StatusReasonBadRequest, "error strict decoding patch"},
	} {
		_, err := f.patch(f.cron("x"), applyPatch, c.data)
		f.expectStatus(err, c.code, c.why, c.text)
	}
	f.mustCreate(f.cron(""), `{"metadata":{"name":"x"}}`)
	_, err := f.patch(f.cron("x"), applyPatch, head+"metadata: {name: x, resourceVersion: '1'}\nspec: {image: i}")
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "the object has been modified")
	f.mustPatch(f.cron("x"), mergePatch, `{"spec":{"image":"a"}}`)
	f.caller.FieldManager = "other"
	_, err = f.patch(f.cron("x"), applyPatch, head+"metadata: {name: x}\nspec: {image: b, image: b}")
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "Apply failed with 1 conflict")
}

// TestApplyMetadata checks that an apply normalizes metadata with nulls, whether it creates the object or changes
// it (CRD-056).
func TestApplyMetadata(t *testing.T) {
	f := newFixture(t)
	for range 2 {
		got := f.mustPatch(f.cron("x"), applyPatch,
			"apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: x, labels: {a: null}, annotations: "+
				"null, finalizers: []}")
		md := got["metadata"].(object.Tree)
		equal(t, "metadata", []any{md["labels"], md["annotations"], md["finalizers"]},
			[]any{map[string]any{"a": ""}, nil, nil})
	}
}

// TestApplyWithUndeclaredField checks an apply after another manager has applied at a version that does not declare
// one of the applied fields. It fails with an error of upstream's library (CRD-056).
func TestApplyWithUndeclaredField(t *testing.T) {
	f := newFixture(t)
	with := func(field string) string {
		return `{"type":"object","properties":{"spec":{"type":"object","properties":{"num":{"type":"integer"},"` +
			field + `":{"type":"string"}}}}}`
	}
	f.writeCRD(cronTabs(with("one"), with("two")))
	apply := func(version, spec string) error {
		f.caller.FieldManager = version
		_, err := f.patch(f.cronAt(version, "a"), applyPatch,
			"apiVersion: stable.example.com/"+version+"\nkind: CronTab\nmetadata: {name: a}\nspec: {"+spec+"}")
		return err
	}
	for _, version := range []string{"v1", "v2"} {
		if err := apply(version, "num: 1"); err != nil {
			t.Fatal(err)
		}
	}
	f.expectStatus(apply("v1", "num: 1, one: x"), 500, metav1.StatusReasonUnknown,
		"failed to convert new object: .spec.one: field not declared in schema")
}

// TestApplyMalformedMetadata checks that an apply rejects malformed metadata, except in fields that the server
// sets (CRD-056, CRD-072).
func TestApplyMalformedMetadata(t *testing.T) {
	f := newFixture(t)
	head := "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: x, "
	systemFields := []string{"creationTimestamp: nonsense", "generation: 1.5"}
	deletionFields := []string{"deletionTimestamp: nonsense", "deletionGracePeriodSeconds: 1.5"}
	for _, field := range append(systemFields, deletionFields...) {
		created := f.mustPatch(f.cron("x"), applyPatch, head+field+"}")
		equal(t, field, []any{valueAt(created, "metadata.generation"),
			created["metadata"].(object.Tree)["deletionTimestamp"]}, []any{1, nil})
		if _, _, err := f.Delete(f.ctx, f.cron("x"), metav1.DeleteOptions{}, f.caller); err != nil {
			t.Fatal(err)
		}
	}
	created := valueAt(treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"name":"x"}}`)), "metadata.creationTimestamp")
	for _, field := range systemFields {
		got := f.mustPatch(f.cron("x"), applyPatch, head+field+"}")
		equal(t, field, valueAt(got, "metadata.creationTimestamp"), created)
	}
	for _, field := range deletionFields {
		_, err := f.patch(f.cron("x"), applyPatch, head+field+"}")
		f.expectStatus(err, 422, metav1.StatusReasonInvalid,
			`CronTab.stable.example.com "x" is invalid: metadata: Invalid value: `)
		f.mustPatch(subresource(f.cron("x"), "status"), applyPatch, head+field+"}")
	}
}

// TestApplyBuiltin checks that an apply creates an object of a built-in kind. A second apply of the same object
// changes nothing (CRD-018).
func TestApplyBuiltin(t *testing.T) {
	f := newFixture(t)
	config := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}"
	created := f.mustPatch(f.configMap("a"), applyPatch, config)
	equal(t, "data", created["data"], map[string]any{"k": "v"})
	before := f.Store.Head().Revision()
	f.mustPatch(f.configMap("a"), applyPatch, config)
	equal(t, "changes", len(f.eventsAfter(before)), 0)
}

// TestPatchStatus checks patches and applies of /status (SUB-012).
func TestPatchStatus(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	next := f.mustPatch(
		subresource(f.cron("my-cron"), "status"),
		mergePatch,
		`{"status":{"phase":"A"},"spec":{"image":"no"}}`,
	)
	equal(t, "after merge", []any{next["status"], valueAt(next, "spec.image")},
		[]any{map[string]any{"phase": "A"}, "awesome"})
	next = f.mustPatch(subresource(f.cron("my-cron"), "status"), jsonPatch,
		`[{"op":"replace","path":"/status/phase","value":"B"}]`)
	equal(t, "after JSON", next["status"], map[string]any{"phase": "B"})
	f.caller.FieldManager = "applier"
	next = f.mustPatch(subresource(f.cron("my-cron"), "status"), applyPatch,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"my-cron"},"status":{"replicas":3}}`)
	equal(t, "after apply", next["status"], map[string]any{"phase": "B", "replicas": 3})
	equal(t, "generation", valueAt(next, "metadata.generation"), 1)
	_, err := f.patch(subresource(f.cron("none"), "status"), applyPatch,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"none"}}`)
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, "not found")
}

// TestConcurrentPatches checks that concurrent patches without a resourceVersion all succeed (CRD-018).
func TestConcurrentPatches(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	f.caller.Warn = nil
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for j := range 10 {
				data := fmt.Sprintf(`{"metadata":{"annotations":{"k%d-%d":"x"}}}`, i, j)
				if _, _, err := f.Patch(f.ctx, f.cron("my-cron"), verb.Patch{Type: mergePatch, Data: []byte(data)},
					f.caller); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	equal(t, "annotations", len(valueAt(f.get(f.cron("my-cron")), "metadata.annotations").(object.Tree)), 160)
}
