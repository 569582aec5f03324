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

	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	jsonPatch = types.JSONPatchType
	merging   = types.MergePatchType
	strategic = types.StrategicMergePatchType
	applying  = types.ApplyYAMLPatchType
)

// CRD-055
func TestPatchKinds(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.cron(""), cronTab)
	next := w.mustPatch(w.cron("my-cron"), jsonPatch, `[{"op":"replace","path":"/spec/image","value":"one"}]`)
	equal(t, "image", valueAt(next, "spec.image"), "one")
	next = w.mustPatch(w.cron("my-cron"), merging, `{"spec":{"image":"two","cronSpec":null}}`)
	equal(t, "spec", next["spec"], map[string]any{"image": "two"})
	equal(t, "generation", valueAt(next, "metadata.generation"), 3)
	_, err := w.patch(w.cron("my-cron"), strategic, `{"spec":{"image":"x"}}`)
	w.refused(err, 415, metav1.StatusReasonUnsupportedMediaType, "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"a","finalizers":["example.com/a"]}}`)
	next = w.mustPatch(w.configMap("a"), strategic, `{"metadata":{"finalizers":["example.com/b"]}}`)
	equal(t, "finalizers", valueAt(next, "metadata.finalizers"), []string{"example.com/b", "example.com/a"})
}

// A strategic merge patch changes neither kind nor apiVersion, whatever it says of them, as with upstream. A merge patch that names
// another kind is refused (CRD-055).
func TestStrategicPatchKeepsTheKind(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"a"}}`)
	for i, of := range []string{`"kind":"Deployment"`, `"apiVersion":"apps/v1"`, `"kind":"Scale","apiVersion":"autoscaling/v1"`, `"kind":null,"apiVersion":null`, `"kind":""`} {
		next := w.mustPatch(w.configMap("a"), strategic, fmt.Sprintf(`{%s,"data":{"i":"%d"}}`, of, i))
		equal(t, of, []any{next["apiVersion"], next["kind"], valueAt(next, "data.i")}, []any{"v1", "ConfigMap", fmt.Sprint(i)})
	}
	_, err := w.patch(w.configMap("a"), strategic, `{"kind":5}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, `patch: Invalid value: "map[kind:5]": cannot convert int64 to string`)
	_, err = w.patch(w.configMap("a"), merging, `{"kind":"Deployment"}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "")
}

// The refusal of a strategic merge patch quotes the patch, and says what upstream says of its result.
func TestStrategicPatchOfAnotherType(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"a"}}`)
	for patch, want := range map[string]string{
		`{"metadata":{"labels":"invalid"}}`: `"map[metadata:map[labels:invalid]]": cannot restore map from string`,
		`{"data":{"a":{"b":1}}}`:            `"map[data:map[a:map[b:1]]]": `,
		`{"immutable":"yes"}`:               `"map[immutable:yes]": `,
		`{"metadata":{"generation":"x"}}`:   `"map[metadata:map[generation:x]]": `,
	} {
		patched := w.get(w.configMap("a"))
		sent, _, err := object.DecodeJSON([]byte(patch))
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(patched, sent)
		upstream := runtime.DefaultUnstructuredConverter.FromUnstructured(patched, &corev1.ConfigMap{})
		_, err = w.patch(w.configMap("a"), strategic, patch)
		w.refused(err, 422, metav1.StatusReasonInvalid, want)
		w.refused(err, 422, metav1.StatusReasonInvalid, upstream.Error())
	}
}

// CRD-052, CRD-053, CRD-055
func TestPatchRefusals(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.cron(""), cronTab)
	for _, c := range []struct {
		kind types.PatchType
		data string
		code int32
		why  metav1.StatusReason
		text string
	}{
		{merging, `{`, 400, metav1.StatusReasonBadRequest, "invalid JSON patch"},
		{merging, `{"metadata":{"name":"other"}}`, 400, metav1.StatusReasonBadRequest, "the name of the object (other) does not match the name on the URL (my-cron)"},
		{merging, `{"metadata":{"resourceVersion":"1"}}`, 409, metav1.StatusReasonConflict, "the object has been modified"},
		{merging, `{"metadata":{"uid":"x"}}`, 422, metav1.StatusReasonInvalid, `metadata.uid: Invalid value: "x": field is immutable`},
		{merging, `{"kind":"Foo"}`, 422, metav1.StatusReasonInvalid, `Foo.stable.example.com "my-cron" is invalid: kind: Invalid value: "Foo": must be CronTab`},
		{merging, `{"kind":null}`, 422, metav1.StatusReasonInvalid, `Object 'Kind' is missing in '{"apiVersion":"stable.example.com/v1",`},
		{jsonPatch, `[{"op":"replace","path":"","value":{"a":1}}]`, 422, metav1.StatusReasonInvalid, ` "" is invalid: patch: Invalid value: "{\"a\":1}": Object 'Kind' is missing in '{"a":1}'`},
		{merging, `{"spec":{"foo":1}}`, 422, metav1.StatusReasonInvalid, `strict decoding error: unknown field "spec.foo"`},
		{jsonPatch, `[{"op":"test","path":"/spec/image","value":"no"}]`, 422, metav1.StatusReasonInvalid, "the server rejected our request due to an error in our request"},
		{jsonPatch, `[{"op":"add","path":"/spec/image","value":"a","nosuch":1}]`, 422, metav1.StatusReasonInvalid, `json patch unknown field "[0].nosuch"`},
	} {
		_, err := w.patch(w.cron("my-cron"), c.kind, c.data)
		w.refused(err, c.code, c.why, c.text)
	}
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"a"}}`)
	_, err := w.patch(w.configMap("a"), merging, `{"kind":"Secret"}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, ` "" is invalid: patch: Invalid value: `)
	_, err = w.patch(w.cron("none"), merging, `{}`)
	w.refused(err, 404, metav1.StatusReasonNotFound, `crontabs.stable.example.com "none" not found`)
	_, _, err = w.Patch(w.ctx, w.cron("my-cron"), Patch{Type: merging, Data: []byte(`{}`), Force: true}, w.caller)
	w.refused(err, 422, metav1.StatusReasonInvalid, "force: Forbidden: may not be specified for non-apply patch")
	w.caller.FieldManager = ""
	_, err = w.patch(w.cron("my-cron"), applying, `{}`)
	w.refused(err, 422, metav1.StatusReasonInvalid, "fieldManager: Required value: is required for apply patch")
}

// CRD-059
func TestPatchWarnings(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.cron(""), cronTab)
	w.caller.Validation = "Warn"
	w.mustPatch(w.cron("my-cron"), merging, `{"spec":{"foo":1,"image":"a","image":"b"}}`)
	equal(t, "warnings", w.warnings, []string{`duplicate field "spec.image"`, `unknown field "spec.foo"`})
}

const applied = `apiVersion: stable.example.com/v1
kind: CronTab
metadata:
  name: applied
spec:
  image: one
  ports:
  - name: a
    port: 1
`

// CRD-056
func TestApply(t *testing.T) {
	w := newWorld(t)
	o, created, err := w.Patch(w.ctx, w.cron("applied"), Patch{Type: applying, Data: []byte(applied)}, w.caller)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	made := treeOf(t, o)
	equal(t, "generation", valueAt(made, "metadata.generation"), 1)
	entry := valueAt(made, "metadata.managedFields").([]any)[0].(object.Tree)
	equal(t, "entry", []any{entry["manager"], entry["operation"]}, []any{"tester", "Apply"})
	w.caller.FieldManager = "other"
	second := strings.ReplaceAll(strings.ReplaceAll(applied, "image: one", "image: two"), "name: a\n    port: 1", "name: b\n    port: 2")
	_, err = w.patch(w.cron("applied"), applying, second)
	s := w.refused(err, 409, metav1.StatusReasonConflict, `Apply failed with 1 conflict: conflict with "tester": .spec.image`)
	equal(t, "causes", s.Details.Causes, []metav1.StatusCause{{Type: "FieldManagerConflict", Message: `conflict with "tester"`, Field: ".spec.image"}})
	o, created, err = w.Patch(w.ctx, w.cron("applied"), Patch{Type: applying, Data: []byte(second), Force: true}, w.caller)
	if err != nil || created {
		t.Fatalf("created %v, %v", created, err)
	}
	equal(t, "spec", treeOf(t, o)["spec"], map[string]any{"image": "two", "ports": []any{map[string]any{"name": "a", "port": 1}, map[string]any{"name": "b", "port": 2}}})
	before := w.Store.Head().Revision()
	if _, _, err := w.Patch(w.ctx, w.cron("applied"), Patch{Type: applying, Data: []byte(second), Force: true}, w.caller); err != nil {
		t.Fatal(err)
	}
	equal(t, "changes by the same apply again", len(w.changes(before)), 0)
}

// CRD-056
func TestApplyRefusals(t *testing.T) {
	w := newWorld(t)
	head := "apiVersion: stable.example.com/v1\nkind: CronTab\n"
	for _, c := range []struct {
		data string
		code int32
		why  metav1.StatusReason
		text string
	}{
		{head + "metadata: {name: x, uid: u}", 409, metav1.StatusReasonConflict, "uid mismatch: the provided object specified uid u, and no existing object was found"},
		{head + "metadata: {name: other}", 400, metav1.StatusReasonBadRequest, "the name of the object (other) does not match the name on the URL (x)"},
		{head + "metadata: {}", 400, metav1.StatusReasonBadRequest, "name must be provided"},
		{head + "metadata: {name: x}\nspec: {foo: 1}", 500, metav1.StatusReasonUnknown, ".spec.foo: field not declared in schema"},
		{"apiVersion: v1\nkind: CronTab", 400, metav1.StatusReasonBadRequest, "invalid object type"},
		{"{", 400, metav1.StatusReasonBadRequest, "error decoding patch"},
		{head + "metadata: {name: x, resourceVersion: x1}", 500, metav1.StatusReasonUnknown, "invalid syntax"},
		{head + "metadata: {name: x, name: x}", 400, metav1.StatusReasonBadRequest, "error strict decoding patch"},
	} {
		_, err := w.patch(w.cron("x"), applying, c.data)
		w.refused(err, c.code, c.why, c.text)
	}
	w.mustCreate(w.cron(""), `{"metadata":{"name":"x"}}`)
	_, err := w.patch(w.cron("x"), applying, head+"metadata: {name: x, resourceVersion: '1'}\nspec: {image: i}")
	w.refused(err, 409, metav1.StatusReasonConflict, "the object has been modified")
	w.mustPatch(w.cron("x"), merging, `{"spec":{"image":"a"}}`)
	w.caller.FieldManager = "other"
	_, err = w.patch(w.cron("x"), applying, head+"metadata: {name: x}\nspec: {image: b, image: b}")
	w.refused(err, 409, metav1.StatusReasonConflict, "Apply failed with 1 conflict")
}

// CRD-056: what is applied with nulls is stored as metadata is, new or not.
func TestApplyMetadata(t *testing.T) {
	w := newWorld(t)
	for range 2 {
		got := w.mustPatch(w.cron("x"), applying, "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: x, labels: {a: null}, annotations: null, finalizers: []}")
		md := got["metadata"].(object.Tree)
		equal(t, "metadata", []any{md["labels"], md["annotations"], md["finalizers"]}, []any{map[string]any{"a": ""}, nil, nil})
	}
}

// CRD-056: where another manager has applied at a version without the field, upstream's library gives up.
func TestApplyBesideAnotherVersion(t *testing.T) {
	w := newWorld(t)
	with := func(field string) string {
		return `{"type":"object","properties":{"spec":{"type":"object","properties":{"num":{"type":"integer"},"` + field + `":{"type":"string"}}}}}`
	}
	w.writeCRD(cronTabs(with("one"), with("two")))
	apply := func(version, spec string) error {
		w.caller.FieldManager = version
		_, err := w.patch(w.crontab(version, "a"), applying, "apiVersion: stable.example.com/"+version+"\nkind: CronTab\nmetadata: {name: a}\nspec: {"+spec+"}")
		return err
	}
	for _, version := range []string{"v1", "v2"} {
		if err := apply(version, "num: 1"); err != nil {
			t.Fatal(err)
		}
	}
	w.refused(apply("v1", "num: 1, one: x"), 500, metav1.StatusReasonUnknown, "failed to convert new object: .spec.one: field not declared in schema")
}

// CRD-056, CRD-072: what is malformed is refused, unless the server sets it.
func TestApplyMalformedMetadata(t *testing.T) {
	w := newWorld(t)
	head := "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: x, "
	own := []string{"creationTimestamp: nonsense", "generation: 1.5"}
	deletion := []string{"deletionTimestamp: nonsense", "deletionGracePeriodSeconds: 1.5"}
	for _, field := range append(own, deletion...) {
		made := w.mustPatch(w.cron("x"), applying, head+field+"}")
		equal(t, field, []any{valueAt(made, "metadata.generation"), made["metadata"].(object.Tree)["deletionTimestamp"]}, []any{1, nil})
		if _, _, err := w.Delete(w.ctx, w.cron("x"), metav1.DeleteOptions{}, w.caller); err != nil {
			t.Fatal(err)
		}
	}
	made := valueAt(treeOf(t, w.mustCreate(w.cron(""), `{"metadata":{"name":"x"}}`)), "metadata.creationTimestamp")
	for _, field := range own {
		got := w.mustPatch(w.cron("x"), applying, head+field+"}")
		equal(t, field, valueAt(got, "metadata.creationTimestamp"), made)
	}
	for _, field := range deletion {
		_, err := w.patch(w.cron("x"), applying, head+field+"}")
		w.refused(err, 422, metav1.StatusReasonInvalid, `CronTab.stable.example.com "x" is invalid: metadata: Invalid value: `)
		w.mustPatch(w.cron("x").sub("status"), applying, head+field+"}")
	}
}

// CRD-018
func TestApplyBuiltin(t *testing.T) {
	w := newWorld(t)
	config := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}"
	made := w.mustPatch(w.configMap("a"), applying, config)
	equal(t, "data", made["data"], map[string]any{"k": "v"})
	before := w.Store.Head().Revision()
	w.mustPatch(w.configMap("a"), applying, config)
	equal(t, "changes", len(w.changes(before)), 0)
}

// SUB-012
func TestPatchStatus(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.cron(""), cronTab)
	next := w.mustPatch(w.cron("my-cron").sub("status"), merging, `{"status":{"phase":"A"},"spec":{"image":"no"}}`)
	equal(t, "after merge", []any{next["status"], valueAt(next, "spec.image")}, []any{map[string]any{"phase": "A"}, "awesome"})
	next = w.mustPatch(w.cron("my-cron").sub("status"), jsonPatch, `[{"op":"replace","path":"/status/phase","value":"B"}]`)
	equal(t, "after JSON", next["status"], map[string]any{"phase": "B"})
	w.caller.FieldManager = "applier"
	next = w.mustPatch(w.cron("my-cron").sub("status"), applying, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"my-cron"},"status":{"replicas":3}}`)
	equal(t, "after apply", next["status"], map[string]any{"phase": "B", "replicas": 3})
	equal(t, "generation", valueAt(next, "metadata.generation"), 1)
	_, err := w.patch(w.cron("none").sub("status"), applying, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"none"}}`)
	w.refused(err, 404, metav1.StatusReasonNotFound, "not found")
}

// CRD-018: patches without a resourceVersion never fail because others write too.
func TestPatchesTogether(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.cron(""), cronTab)
	w.caller.Warn = nil
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for j := range 10 {
				data := fmt.Sprintf(`{"metadata":{"annotations":{"k%d-%d":"x"}}}`, i, j)
				if _, _, err := w.Patch(w.ctx, w.cron("my-cron"), Patch{Type: merging, Data: []byte(data)}, w.caller); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	equal(t, "annotations", len(valueAt(w.get(w.cron("my-cron")), "metadata.annotations").(object.Tree)), 160)
}
