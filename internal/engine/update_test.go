package engine

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestUpdate checks the result of an update, and the errors for a stale, a missing and a malformed resourceVersion
// (CRD-018, CRD-053, SUB-013).
func TestUpdate(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	next := treeOf(t, f.mustEdit(f.cron("my-cron"), func(o object.Tree) { set(o, "spec.image", "better") }))
	equal(t, "image", valueAt(next, "spec.image"), "better")
	equal(t, "generation", valueAt(next, "metadata.generation"), 2)
	if object.ResourceVersion(next) == object.ResourceVersion(created) || object.UID(next) != object.UID(created) {
		t.Fatalf("got metadata %v, want a new resourceVersion and the same UID", next["metadata"])
	}
	_, err := f.Engine.updateTree(f, created)
	f.expectStatus(err, 409, metav1.StatusReasonConflict,
		`Operation cannot be fulfilled on crontabs.stable.example.com "my-cron": the object has been modified; `+
			`please apply your changes to the latest version and try again`)
	_, err = f.update(f.cron("my-cron"), cronTab)
	s := f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		`crontabs.stable.example.com "my-cron" is invalid: metadata.resourceVersion: Invalid value: 0: must be `+
			`specified for an update`)
	equal(t, "cause", s.Details.Causes[0].Field, "metadata.resourceVersion")
	_, err = f.update(f.cron("none"), `{"metadata":{"name":"none","resourceVersion":"1"}}`)
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, `crontabs.stable.example.com "none" not found`)
	_, err = f.update(f.cron("my-cron"), `{"metadata":{"name":"my-cron","resourceVersion":"abc"}}`)
	s = f.expectStatus(err, 500, metav1.StatusReasonUnknown, "")
	equal(t, "message", s.Message, `strconv.ParseUint: parsing "abc": invalid syntax`)
}

// updateTree updates a CronTab with the given tree.
func (e *Engine) updateTree(f *fixture, tree object.Tree) (record.Object, error) {
	o, _, err := e.Update(f.ctx, f.cron(object.Name(tree)), verb.Body{Tree: tree}, f.caller)
	return o, err
}

// TestUpdateNameMismatch checks the errors for a body whose name, namespace or UID differs from the object in the
// request (CRD-014).
func TestUpdateNameMismatch(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	for _, c := range []struct{ body, text string }{
		{`{"metadata":{"name":"other"}}`,
			"the name of the object (other) does not match the name on the URL (my-cron)"},
		{`{"metadata":{}}`, "the name of the object (my-cron based on URL) was undeterminable: name must be provided"},
		{`{"metadata":{"name":"my-cron","namespace":"other"}}`,
			"the namespace of the provided object does not match the namespace sent on the request"},
	} {
		_, err := f.update(f.cron("my-cron"), c.body)
		f.expectStatus(err, 400, metav1.StatusReasonBadRequest, c.text)
	}
	_, err := f.update(f.cron("my-cron"), `{"metadata":{"name":"my-cron","uid":"wrong"}}`)
	f.expectStatus(err, 409, metav1.StatusReasonConflict,
		"Precondition failed: UID in precondition: wrong, UID in object meta: ")
}

// TestUpdateKeepsSystemFields checks that an update cannot change the metadata fields that the server sets
// (CRD-072, SUB-046).
func TestUpdateKeepsSystemFields(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	next := treeOf(t, f.mustEdit(f.cron("my-cron"), func(o object.Tree) {
		md := object.Metadata(o)
		delete(md, "uid")
		md["creationTimestamp"], md["generation"] = "2001-01-01T00:00:00Z", int64(99)
	}))
	equal(t, "metadata", next["metadata"], created["metadata"])
	_, err := f.edit(f.cron("my-cron"), func(o object.Tree) {
		set(o, "metadata.deletionTimestamp",
			"2030-01-01T00:00:00Z")
	})
	f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		"metadata.deletionTimestamp: Invalid value: \"2030-01-01T00:00:00Z\": field is immutable")
	_, err = f.edit(f.cron("my-cron"), func(o object.Tree) { set(o, "metadata.labels", object.Tree{"-": "x"}) })
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "metadata.labels")
}

// TestUpdateWithoutChange checks that an update without changes writes nothing. A new label changes the
// resourceVersion but not the generation (SUB-013).
func TestUpdateWithoutChange(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	config := `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"my-cron"},` +
		`"spec":{"color":"red"}}`
	f.mustPatch(f.cron("my-cron"), types.ApplyYAMLPatchType, config)
	f.mustEdit(f.cron("my-cron"), func(o object.Tree) { set(o, "metadata.annotations", object.Tree{"a": "b"}) })
	before := f.get(f.cron("my-cron"))
	f.now = f.now.Add(time.Hour)
	f.mustEdit(f.cron("my-cron"), func(object.Tree) {})
	f.mustEdit(f.cron("my-cron"), func(o object.Tree) { // this changes only the time of an entry
		for _, entry := range valueAt(o, "metadata.managedFields").([]any) {
			entry.(object.Tree)["time"] = "2026-12-01T00:00:00Z"
		}
	})
	f.mustPatch(f.cron("my-cron"), types.ApplyYAMLPatchType, config)
	equal(t, "object", f.get(f.cron("my-cron")), before)
	f.mustEdit(f.cron("my-cron"), func(o object.Tree) { set(o, "metadata.labels", object.Tree{"a": "b"}) })
	after := f.get(f.cron("my-cron"))
	equal(t, "generation", valueAt(after, "metadata.generation"), valueAt(before, "metadata.generation"))
	if object.ResourceVersion(after) == object.ResourceVersion(before) {
		t.Fatal("got the same resourceVersion after a new label")
	}
}

// TestStatus checks that an update of /status changes only the status, and that an update of the main resource
// leaves the status unchanged (SUB-004, SUB-006, SUB-007, SUB-012).
func TestStatus(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	f.caller.FieldManager = "controller"
	next := treeOf(t, f.mustEdit(subresource(f.cron("my-cron"), "status"), func(o object.Tree) {
		set(o, "status.phase", "Running")
		set(o, "spec.image", "ignored")
		set(o, "metadata.labels", object.Tree{"ignored": "yes"})
	}))
	equal(t, "status", next["status"], map[string]any{"phase": "Running"})
	equal(t, "image", valueAt(next, "spec.image"), "awesome")
	equal(t, "labels", valueAt(next, "metadata.labels"), nil)
	equal(t, "generation", valueAt(next, "metadata.generation"), 1)
	entries := valueAt(next, "metadata.managedFields").([]any)
	last := entries[0].(object.Tree)
	if last["manager"] != "controller" {
		last = entries[1].(object.Tree)
	}
	equal(t, "subresource", []any{last["manager"], last["subresource"], last["fieldsV1"]},
		[]any{"controller", "status", map[string]any{"f:status": map[string]any{".": map[string]any{},
			"f:phase": map[string]any{}}}})
	next = treeOf(t, f.mustEdit(f.cron("my-cron"), func(o object.Tree) {
		delete(o, "status")
		set(o, "spec.image", "new")
	}))
	equal(t, "status after a PUT of the object", next["status"], map[string]any{"phase": "Running"})
	equal(t, "generation", valueAt(next, "metadata.generation"), 2)
	equal(t, "GET of /status", f.get(subresource(f.cron("my-cron"), "status")), next)
}

// TestStatusIsValidatedSeparately checks that a status update succeeds even if other fields of the object are
// invalid (SUB-005).
func TestStatusIsValidatedSeparately(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)
	strict := strings.Replace(cronTabSchema, `"spec":{"type":"object",`,
		`"spec":{"type":"object","required":["color"],`, 1)
	f.writeCRD(cronTabs(strict, strict))
	_, err := f.patch(f.cron("a"), mergePatch, `{"spec":{"replicas":1}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.color: Required value")
	after := f.mustPatch(subresource(f.cron("a"), "status"), mergePatch, `{"status":{"phase":"Done"}}`)
	equal(t, "phase", valueAt(after, "status.phase"), "Done")
	_, err = f.patch(subresource(f.cron("a"), "status"), mergePatch, `{"status":{"phase":7}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		"status.phase: Invalid value: \"integer\": phase in body must be of type string")
}

// TestWithoutStatusSubresource checks a version that has no status subresource. Its status is an ordinary field
// (SUB-011).
func TestWithoutStatusSubresource(t *testing.T) {
	f := newFixture(t)
	f.writeCRD(strings.ReplaceAll(cronTabs(cronTabSchema, cronTabSchema), `"status":{},"scale"`, `"scale"`))
	created := treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"status":{"phase":"Mine"}}`))
	equal(t, "status", created["status"], map[string]any{"phase": "Mine"})
	next := treeOf(t, f.mustEdit(f.cron("a"), func(o object.Tree) { set(o, "status.phase", "Other") }))
	equal(t, "generation", valueAt(next, "metadata.generation"), 2)
	_, err := f.Get(f.ctx, subresource(f.cron("a"), "status"), "")
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	_, err = f.edit(subresource(f.cron("a"), "status"), func(object.Tree) {})
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
}

// TestFinalizersOfTerminatingObject checks that no finalizer can be added to a terminating object. The removal of
// the last finalizer deletes the object (SUB-039, SUB-043, SUB-044).
func TestFinalizersOfTerminatingObject(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a","finalizers":["stable.example.com/finalizer"]}}`)
	f.delete(f.cron("a"), metav1.DeleteOptions{})
	_, err := f.edit(f.cron("a"), func(o object.Tree) {
		set(o, "metadata.finalizers", []any{"stable.example.com/finalizer", "stable.example.com/more"})
	})
	f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		`metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new `+
			`finalizers []string{"stable.example.com/more"}`)
	o := f.mustEdit(f.cron("a"), func(o object.Tree) { delete(object.Metadata(o), "finalizers") })
	equal(t, "finalizers", valueAt(treeOf(t, o), "metadata.finalizers"), nil)
	_, err = f.Get(f.ctx, f.cron("a"), "")
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, "not found")
}

// TestUnconditionalUpdate checks an update without a resourceVersion. The kind must allow such updates (CRD-053).
func TestUnconditionalUpdate(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"},"data":{"k":"1"}}`))
	o, err := f.update(f.configMap("a"), `{"metadata":{"name":"a"},"data":{"k":"2"}}`)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "data", treeOf(t, o)["data"], map[string]any{"k": "2"})
	equal(t, "uid", object.UID(treeOf(t, o)), object.UID(created))
}

// TestCreateByUpdate checks that a PUT creates a Lease that does not exist (CRD-018).
func TestCreateByUpdate(t *testing.T) {
	f := newFixture(t)
	lease := f.target("coordination.k8s.io", "v1", "leases", "default")
	lease.Name = "l"
	body := `{"metadata":{"name":"l"},"spec":{"holderIdentity":"me"}}`
	_, created, err := f.Update(f.ctx, lease, f.body(lease, body), f.caller)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	_, _, err = f.Update(f.ctx, lease, f.body(lease, body), f.caller)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "must be specified for an update")
}

// TestUpdateDryRun checks that a dry run of an update returns its result and stores nothing (CRD-058).
func TestUpdateDryRun(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	before := f.get(f.cron("my-cron"))
	f.caller.DryRun = true
	o := f.mustEdit(f.cron("my-cron"), func(o object.Tree) { set(o, "spec.image", "other") })
	equal(t, "image", valueAt(treeOf(t, o), "spec.image"), "other")
	equal(t, "stored", f.get(f.cron("my-cron")), before)
	_, err := f.edit(f.cron("my-cron"), func(o object.Tree) { set(o, "metadata.labels", object.Tree{"a b": "c"}) })
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "metadata.labels: Invalid value")
}

// TestVersionsArePruned checks that reads and updates at a version use the schema of this version to prune fields
// (CRD-019, SCH-028).
func TestVersionsArePruned(t *testing.T) {
	f := newFixture(t)
	narrow := strings.Replace(cronTabSchema, `"color":{"type":"string"},`, "", 1)
	f.writeCRD(cronTabs(cronTabSchema, strings.Replace(narrow, `"selectableFields":[{"jsonPath":".spec.color"}]`, "",
		1)))
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"color":"red","image":"i"}}`)
	v2 := f.target("stable.example.com", "v2", "crontabs", "default")
	v2.Name = "a"
	seen := f.get(v2)
	equal(t, "at v2", []any{seen["apiVersion"], seen["spec"]},
		[]any{"stable.example.com/v2", map[string]any{"image": "i"}})
	o := f.mustEdit(v2, func(o object.Tree) { set(o, "spec.image", "j") })
	equal(t, "generation", valueAt(treeOf(t, o), "metadata.generation"), 2)
	equal(t, "at v1", f.get(f.cron("a"))["spec"], map[string]any{"image": "j"})
}

// TestMetadataIsNotRatcheted checks that an update rejects an invalid label even if the stored object already has
// it (VAL-040).
func TestMetadataIsNotRatcheted(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	set(created, "metadata.labels", object.Tree{"a": "not a label"})
	key := "/registry/stable.example.com/crontabs/default/my-cron"
	f.commit(storage.Write{Key: key, Value: object.Pack(created, 0).JSON(), Expected: f.Store.Head().Get(key).Modified})
	_, err := f.patch(f.cron("my-cron"), types.MergePatchType, `{"spec":{"image":"better"}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		`metadata.labels: Invalid value: "not a label": a valid label must`)
	equal(t, "image after the label is removed",
		valueAt(f.mustPatch(f.cron("my-cron"), types.MergePatchType,
			`{"metadata":{"labels":null},"spec":{"image":"better"}}`), "spec.image"), "better")
}

// TestOnlyValidDataIsStored checks that a rejected create, update, patch or apply changes nothing in the store
// (SCH-020).
func TestOnlyValidDataIsStored(t *testing.T) {
	f := newFixture(t)
	key := "/registry/stable.example.com/crontabs/default/my-cron"
	const bad = `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"my-cron"},` +
		`"spec":{"replicas":"many"}}`
	_, created := f.create(f.cron(""), bad)
	_, applied := f.patch(f.cron("my-cron"), types.ApplyPatchType, bad)
	if r := f.Store.Head().Get(key); created == nil || applied == nil || r != nil {
		t.Fatalf("got %v, %v and stored %v, want errors and nothing stored", created, applied, r)
	}
	tree := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	stored := string(f.Store.Head().Get(key).Value)
	if !strings.Contains(stored, `"image":"`) {
		t.Fatalf("got stored %s, want an image", stored)
	}
	set(tree, "spec.replicas", "many")
	_, updated := f.Engine.updateTree(f, tree)
	_, patched := f.patch(f.cron("my-cron"), types.MergePatchType, `{"spec":{"replicas":"many"}}`)
	_, applied = f.patch(f.cron("my-cron"), types.ApplyPatchType,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","spec":{"ports":[{"port":1}]}}`)
	for verb, err := range map[string]error{"update": updated, "patch": patched, "apply": applied} {
		if err == nil || string(f.Store.Head().Get(key).Value) != stored {
			t.Errorf("%s: got %v and stored %s, want an error and no change", verb, err, f.Store.Head().Get(key).Value)
		}
	}
}
