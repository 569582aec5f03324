package engine

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

// TestReadScale checks the Scale of an object, with and without a status (SUB-014, SUB-015, SUB-018, SUB-020,
// SUB-021, SUB-023, SUB-029).
func TestReadScale(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":3}}`))
	scale := f.get(subresource(f.cron("a"), "scale"))
	equal(t, "scale", scale, map[string]any{
		"apiVersion": "autoscaling/v1", "kind": "Scale",
		"metadata": map[string]any{"name": "a", "namespace": "default", "uid": object.UID(created),
			"resourceVersion": object.ResourceVersion(created), "creationTimestamp": "2026-05-06T07:08:09Z"},
		"spec": map[string]any{"replicas": 3}, "status": map[string]any{"replicas": 0},
	})
	f.mustEdit(subresource(f.cron("a"), "status"),
		func(o object.Tree) { o["status"] = object.Tree{"replicas": int64(2), "selector": "app=a"} })
	equal(
		t,
		"status",
		f.get(subresource(f.cron("a"), "scale"))["status"],
		map[string]any{"replicas": 2, "selector": "app=a"},
	)
}

// TestScaleErrors checks the errors for missing and invalid replicas, and for a version without a scale
// subresource (SUB-017, SUB-031, SUB-034).
func TestScaleErrors(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"}}`)
	_, err := f.Get(f.ctx, subresource(f.cron("a"), "scale"), "")
	f.expectStatus(err, 500, metav1.StatusReasonInternalError,
		`the spec replicas field ".spec.replicas" does not exist`)
	_, err = f.update(subresource(f.cron("a"), "scale"), `{"metadata":{"name":"a"},"spec":{"replicas":-1}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		".spec.replicas: Invalid value: -1: should be a non-negative integer")
	_, err = f.update(subresource(f.cron("a"), "scale"), `{"metadata":{"name":"a"},"spec":{"replicas":4294967296}}`)
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest, "cannot be handled as a Scale")
	_, err = f.patch(subresource(f.cron("a"), "scale"), mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest, `the spec replicas field ".spec.replicas" cannot be empty`)
	// The server ignores the managedFields of a Scale in a request.
	f.mustPatch(subresource(f.cron("a"), "scale"), mergePatch,
		`{"metadata":{"managedFields":[{"manager":"m","operation":"Update","apiVersion":"autoscaling/v1",`+
			`"fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]},"spec":{"replicas":0}}`)
	equal(t, "replicas", valueAt(f.get(f.cron("a")), "spec.replicas"), 0)
	_, err = f.create(f.cron(""), `{"metadata":{"name":"b"},"spec":{"replicas":4294967296}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "should be less than or equal to 2147483647")
	f.writeCRD(strings.ReplaceAll(cronTabs(cronTabSchema, cronTabSchema), `"scale":{`, `"other":{`))
	_, err = f.Get(f.ctx, subresource(f.cron("a"), "scale"), "")
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
}

// TestWriteScale checks updates, patches and applies of a Scale (SUB-026, SUB-027, SUB-032).
func TestWriteScale(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":3,"image":"i"}}`)
	scale := treeOf(
		t,
		f.mustEdit(subresource(f.cron("a"), "scale"), func(o object.Tree) { set(o, "spec.replicas", int64(5)) }),
	)
	equal(t, "scale", scale["spec"], map[string]any{"replicas": 5})
	scaled := f.get(f.cron("a"))
	equal(t, "object", []any{scaled["spec"], valueAt(scaled, "metadata.generation")},
		[]any{map[string]any{"replicas": 5, "image": "i"}, 2})
	set(scale, "metadata.resourceVersion", "1")
	_, _, err := f.Update(f.ctx, subresource(f.cron("a"), "scale"), verb.Body{Tree: scale}, f.caller)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "the object has been modified")
	next := f.mustPatch(subresource(f.cron("a"), "scale"), mergePatch, `{"spec":{"replicas":6}}`)
	equal(t, "patched", next["spec"], map[string]any{"replicas": 6})
	f.caller.FieldManager = "hpa"
	_, err = f.patch(subresource(f.cron("a"), "scale"), applyPatch,
		`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"a"},"spec":{"replicas":7}}`)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "conflict with")
	o, _, err := f.Patch(f.ctx, subresource(f.cron("a"), "scale"), verb.Patch{Type: applyPatch, Force: true,
		Data: []byte(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"a"},"spec":{"replicas":7}}`)},
		f.caller)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "applied", treeOf(t, o)["spec"], map[string]any{"replicas": 7})
}
