package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// ownedFields returns the JSON of the fields that a manager owns through a subresource.
func ownedFields(tree object.Tree, manager, subresource string) string {
	entries, _ := valueAt(tree, "metadata.managedFields").([]any)
	for _, e := range entries {
		if e := e.(object.Tree); e["manager"] == manager && object.String(e, "subresource") == subresource {
			return string(object.AppendJSON(nil, object.Tree{"": e["fieldsV1"]}))
		}
	}
	return ""
}

// TestResetFieldsHaveNoOwner checks that a manager does not own fields that its endpoint ignores (SUB-012,
// CRD-057).
func TestResetFieldsHaveNoOwner(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.namespace(""), `{"metadata":{"name":"n"}}`)
	for _, c := range []struct {
		at      verb.Target
		data    string
		has, no string
	}{
		{f.cron("a"), `{"spec":{"image":"j"},"status":{"phase":"Done"}}`, "f:image", "f:status"},
		{subresource(f.cron("a"), "status"), `{"spec":{"image":"k"},"status":{"phase":"Done"},` +
			`"metadata":{"labels":{"x":"y"}}}`,
			"f:phase", "f:image"},
		{subresource(f.cron("a"), "status"), `{"status":{"phase":"Gone"},"metadata":{"labels":{"x":"z"}}}`, "f:phase",
			"f:labels"},
		{f.namespace("n"), `{"metadata":{"labels":{"x":"y"}},"spec":{"finalizers":["example.com/x"]},` +
			`"status":{"phase":"Odd"}}`, "f:labels", "f:status"},
		{subresource(f.namespace("n"), "status"),
			`{"spec":{"finalizers":["example.com/x"]},"status":{"conditions":[{"type":"C","status":"True"}]}}`,
			"f:conditions", "f:finalizers"},
	} {
		if f.Store.Head().Get(aKey) == nil {
			f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)
		}
		f.caller.FieldManager = "patcher"
		got := ownedFields(f.mustPatch(c.at, mergePatch, c.data), "patcher", c.at.Subresource)
		if !strings.Contains(got, c.has) || strings.Contains(got, c.no) {
			t.Errorf("%s through %q: got owned fields %s, want %s and not %s", c.data, c.at.Subresource, got, c.has,
				c.no)
		}
	}
}

// TestEncodedZeroFieldsHaveNoOwner checks that no manager owns a field that the Go type always encodes, such as an
// empty status (CRD-057).
func TestEncodedZeroFieldsHaveNoOwner(t *testing.T) {
	f := newFixture(t)
	body := `{"metadata":{"name":"a"},"spec":{"ports":[{"port":80}]}}`
	created := treeOf(t, f.mustCreate(f.service(""), body))
	if got := ownedFields(created, "tester", ""); !strings.Contains(got, `"f:spec":{"f:`) ||
		strings.Contains(got, "f:status") {
		t.Errorf("got owned fields %s after the create", got)
	}
	delete(object.Metadata(created), "managedFields")
	key := serviceKey("a")
	f.commit(storage.Write{Key: key, Value: object.Pack(created, 0).JSON(), Expected: f.Store.Head().Get(key).Modified})
	got := ownedFields(f.mustPatch(f.service("a"), applyPatch,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","labels":{"x":"y"}}}`), "before-first-apply", "")
	if !strings.Contains(got, `"f:spec":{"f:`) || strings.Contains(got, "f:status") {
		t.Errorf("got owned fields %s before the first apply", got)
	}
}

// serviceKey returns the storage key of a Service.
func serviceKey(name string) string { return "/registry/services/specs/default/" + name }

// TestCreateWithManagedFields checks that a client may send managedFields with a create, even if the create is
// retried (CRD-057).
func TestCreateWithManagedFields(t *testing.T) {
	f := newFixture(t)
	r := f.raceBeforeCommit(func(storage.Write) {
		f.mustPatch(f.namespace("default"), mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	})
	created := treeOf(t, f.mustCreate(f.cron(""),
		`{"metadata":{"name":"a","managedFields":[{"manager":"given","operation":"Apply",`+
			`"apiVersion":"stable.example.com/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:color":{},`+
			`"f:cronSpec":{}}}}]},"spec":{"image":"i","color":"red"}}`))
	r.expectAttempts(2)
	equal(t, "fields of the given manager", ownedFields(created, "given", ""), `{"":{"f:spec":{"f:cronSpec":{}}}}`)
}

// TestUpdateOfTerminatingObject checks that an update cannot change the metadata fields that a started deletion has
// set (SUB-046).
func TestUpdateOfTerminatingObject(t *testing.T) {
	f := newRaceFixture(t, true)
	f.addFinalizer(storage.Write{})
	f.delete(f.cron("a"), metav1.DeleteOptions{})
	marked := f.get(f.cron("a"))
	for _, change := range []func(md object.Tree){
		func(md object.Tree) { delete(md, "deletionTimestamp"); delete(md, "deletionGracePeriodSeconds") },
		func(md object.Tree) { md["deletionTimestamp"] = "2036-01-01T00:00:00Z" },
	} {
		f.mustEdit(f.cron("a"), func(o object.Tree) {
			change(object.Metadata(o))
			set(o, "metadata.annotations", object.Tree{"x": object.ResourceVersion(o)})
		})
		got := f.get(f.cron("a"))
		for _, field := range []string{"deletionTimestamp", "deletionGracePeriodSeconds", "generation"} {
			equal(t, field, object.Metadata(got)[field], object.Metadata(marked)[field])
		}
	}
	_, err := f.edit(f.cron("a"), func(o object.Tree) { set(o, "metadata.deletionGracePeriodSeconds", int64(5)) })
	f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		"metadata.deletionGracePeriodSeconds: Invalid value: 5: field is immutable")
}

// TestScaleToZero checks that a Scale with 0 replicas omits the field. So no manager owns it (SUB-026).
func TestScaleToZero(t *testing.T) {
	f := newRaceFixture(t, true)
	f.caller.FieldManager = "scaler"
	for _, n := range []string{"3", "0"} {
		if _, err := f.update(subresource(f.cron("a"), "scale"), `{"metadata":{"name":"a"},"spec":{"replicas":`+n+
			`}}`); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"3": `{"":{"f:spec":{"f:replicas":{}}}}`, "0": ""}[n]
		equal(t, "owned fields at replicas "+n, ownedFields(f.get(f.cron("a")), "scaler", "scale"), want)
	}
	f.mustCreate(f.cron(""), `{"metadata":{"name":"b"}}`)
	_, err := f.patch(subresource(f.cron("b"), "scale"), applyPatch,
		`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"b"}}`)
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest, `the spec replicas field ".spec.replicas" cannot be empty`)
}

// TestCreateOverTerminatingObject checks the error for a create with the name of a terminating object (CRD-052).
func TestCreateOverTerminatingObject(t *testing.T) {
	f := newRaceFixture(t, true)
	f.addFinalizer(storage.Write{})
	f.delete(f.cron("a"), metav1.DeleteOptions{})
	f.expectStatus(createVerbs[0].do(f, f.cron("a")), 409, metav1.StatusReasonAlreadyExists,
		`object is being deleted: crontabs.stable.example.com "a" already exists`)
}

// TestDuplicateOwnersOfEveryVerb checks that every verb drops duplicate owner references and returns a warning
// (CRD-066).
func TestDuplicateOwnersOfEveryVerb(t *testing.T) {
	const owner = `{"apiVersion":"v1","kind":"ConfigMap","name":"o","uid":"u1"}`
	const body = `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a","ownerReferences":[` +
		owner + `,` + owner + `]}}`
	for name, write := range map[string]func(f *fixture) error{
		"update": func(f *fixture) error {
			_, err := f.edit(f.cron("a"), func(o object.Tree) {
				refs := valueAt(decode(t, body), "metadata.ownerReferences")
				set(o, "metadata.ownerReferences", refs)
			})
			return err
		},
		"patch": func(f *fixture) error {
			_, err := f.patch(f.cron("a"), mergePatch, body)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newRaceFixture(t, true)
			if err := write(f); err != nil {
				t.Fatal(err)
			}
			equal(t, "owner references", len(object.OwnerReferences(f.get(f.cron("a")))), 1)
			if len(f.warnings) != 1 || !strings.Contains(f.warnings[0], "duplicate UID(s) observed: u1") {
				t.Errorf("got warnings %v, want one about duplicate UIDs", f.warnings)
			}
		})
	}
}

// TestScaleNameMismatch checks the errors for a Scale whose name or namespace differs from that of the request
// (SUB-026).
func TestScaleNameMismatch(t *testing.T) {
	f := newRaceFixture(t, true)
	for metadata, text := range map[string]string{
		`{"name":"b"}`: "the name of the object (b) does not match the name on the URL (a)",
		`{"name":"a","namespace":"other"}`: "the namespace of the provided object does not match the namespace sent " +
			"on the request",
	} {
		body := `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":` + metadata + `,"spec":{"replicas":7}}`
		_, err := f.update(subresource(f.cron("a"), "scale"), body)
		f.expectStatus(err, 400, metav1.StatusReasonBadRequest, text)
		_, err = f.patch(subresource(f.cron("a"), "scale"), mergePatch, body)
		f.expectStatus(err, 400, metav1.StatusReasonBadRequest, text)
		_, _, err = f.Patch(
			f.ctx,
			subresource(f.cron("a"), "scale"),
			verb.Patch{Type: applyPatch, Data: []byte(body), Force: true},
			f.caller,
		)
		f.expectStatus(err, 400, metav1.StatusReasonBadRequest, text)
	}
}

// TestUpsertIgnoresResourceVersion checks that an update or apply that creates an object ignores its
// resourceVersion (CRD-018, CRD-056).
func TestUpsertIgnoresResourceVersion(t *testing.T) {
	f := newFixture(t)
	lease := f.target("coordination.k8s.io", "v1", "leases", "default")
	lease.Name = "l"
	if _, created, err := f.Update(f.ctx, lease, f.body(lease, `{"metadata":{"name":"l","resourceVersion":"1"}}`),
		f.caller); err != nil || !created {
		t.Errorf("created %v, %v", created, err)
	}
	f.mustPatch(f.cron("a"), applyPatch,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a","resourceVersion":"1"}}`)
}

// TestUpdateInvalidMetadata checks that an update validates metadata as a create does (CRD-072).
func TestUpdateInvalidMetadata(t *testing.T) {
	f := newRaceFixture(t, true)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
	for _, at := range []verb.Target{f.cron("a"), f.configMap("a")} {
		_, err := f.patch(at, mergePatch, `{"metadata":{"finalizers":["no good/x"]}}`)
		f.expectStatus(err, 422, metav1.StatusReasonInvalid, "metadata.finalizers")
		_, err = f.patch(at, mergePatch, `{"metadata":{"managedFields":[{"manager":"`+strings.Repeat("m", 200)+
			`","operation":"Update","apiVersion":"`+at.Version.APIVersion+
			`","time":"2026-05-06T07:08:09Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:color":{}}}}]}}`)
		f.expectStatus(err, 422, metav1.StatusReasonInvalid, "metadata.managedFields[0].manager: Too long")
	}
}

// TestDeleteWithoutGeneration checks that a deletion sets no generation if the kind has no generations (SUB-038).
func TestDeleteWithoutGeneration(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a","finalizers":["example.com/x"]}}`)
	o, _ := f.delete(f.configMap("a"), metav1.DeleteOptions{})
	equal(t, "generation", valueAt(treeOf(t, o), "metadata.generation"), nil)
	_, _, err := f.Delete(f.ctx, subresource(f.configMap("a"), "status"), metav1.DeleteOptions{}, f.caller)
	f.expectStatus(err, 405, metav1.StatusReasonMethodNotAllowed, "delete is not supported on resources of kind")
}

// TestDeleteBeforeDeletionTime checks that a deletion replaces a deletionTimestamp in the future by the current
// time.
func TestDeleteBeforeDeletionTime(t *testing.T) {
	f := newRaceFixture(t, true)
	f.addFinalizer(storage.Write{})
	later := f.get(f.cron("a"))
	set(later, "metadata.deletionTimestamp", "2036-01-01T00:00:00Z")
	f.commit(storage.Write{Key: aKey, Value: object.Pack(later, 0).JSON(), Expected: f.Store.Head().Get(aKey).Modified})
	o, _ := f.delete(f.cron("a"), metav1.DeleteOptions{})
	equal(t, "deletion", valueAt(treeOf(t, o), "metadata.deletionTimestamp"), "2026-05-06T07:08:09Z")
}

// TestEventsExpire checks that every write of an Event sets its expiry.
func TestEventsExpire(t *testing.T) {
	f := newFixture(t)
	at := f.target("", "v1", "events", "default")
	expires := func(after string) {
		t.Helper()
		if f.Store.Head().Get("/registry/events/default/e").Expires.IsZero() {
			t.Errorf("the Event has no expiry after a %s", after)
		}
	}
	f.mustCreate(at, `{"metadata":{"name":"e","finalizers":["example.com/x"]},"involvedObject":{"kind":"Pod",`+
		`"name":"p","namespace":"default"},"reason":"Started","type":"Normal"}`)
	expires("create")
	at.Name = "e"
	f.mustPatch(at, mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	expires("patch")
	f.delete(at, metav1.DeleteOptions{})
	expires("deletion")
}

// TestManagedFieldsOnlyChange checks that an update that changes only managedFields is stored (CRD-057).
func TestManagedFieldsOnlyChange(t *testing.T) {
	f := newRaceFixture(t, true)
	before := f.get(f.cron("a"))
	f.mustEdit(f.cron("a"), func(o object.Tree) {
		valueAt(o, "metadata.managedFields").([]any)[0].(object.Tree)["manager"] = "retset" // as long as "tester"
	})
	after := f.get(f.cron("a"))
	if object.ResourceVersion(after) == object.ResourceVersion(before) || ownedFields(after, "retset", "") == "" {
		t.Errorf("got metadata %v, want a new resourceVersion and manager", after["metadata"])
	}
}

// TestNoOpWriteStoresUnderNewSchema changes the schema and then makes an update that changes nothing. It checks
// that the update stores the object in its form under the new schema, even if both forms have the same length
// (SCH-028).
func TestNoOpWriteStoresUnderNewSchema(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"color":"red"}}`)
	other := strings.Replace(cronTabSchema, `"color":{"type":"string"}`, `"hue":{"type":"string","default":"redxx"}`, 1)
	f.writeCRD(cronTabs(other, other))
	before := f.Store.Head().Get(aKey)
	o := f.mustEdit(f.cron("a"), func(object.Tree) {})
	if o.Revision == before.Modified || len(o.Record.Value) != len(before.Value) {
		t.Errorf("stored %s, then %s; want a new revision of the same length", before.Value, o.Record.Value)
	}
}

// TestDeleteCollectionLimits checks that DeleteCollection deletes as many objects as its limit allows. If no limit
// is set, it deletes the objects of all pages (CRD-065).
func TestDeleteCollectionLimits(t *testing.T) {
	f := newFixture(t)
	var writes []storage.Write
	for i := range 1002 {
		name := fmt.Sprintf("c%04d", i)
		tree := object.Tree{"apiVersion": "stable.example.com/v1", "kind": "CronTab",
			"metadata": object.Tree{"name": name, "namespace": "default", "uid": name}}
		writes = append(writes, storage.Write{Key: strings.TrimSuffix(aKey, "a") + name,
			Value: object.Pack(tree, 0).JSON()})
	}
	for some := range slices.Chunk(writes, 100) {
		f.commit(some...)
	}
	page, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, read.ListOptions{Limit: 1}, f.caller)
	if err != nil || len(page.Items) != 1 || page.Continue == "" {
		t.Fatalf("got %v, %v; want 1 object and a continue token", page, err)
	}
	equal(t, "remaining objects", f.countStored(), 1001)
	all, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, read.ListOptions{}, f.caller)
	if err != nil || len(all.Items) != 1001 || all.Continue != "" {
		t.Fatalf("%d, %v", len(all.Items), err)
	}
	equal(t, "remaining objects", f.countStored(), 0)
}

// TestRemovedFieldIncrementsGeneration checks that the removal of a field increments the generation (SUB-013).
func TestRemovedFieldIncrementsGeneration(t *testing.T) {
	f := newRaceFixture(t, true)
	next := f.mustEdit(f.cron("a"), func(o object.Tree) { delete(o, "spec") })
	equal(t, "generation", valueAt(treeOf(t, next), "metadata.generation"), 2)
}

// TestObjectKeptAfterLastFinalizer checks that an object that has lost its last finalizer is kept during its grace
// period. A terminating namespace is kept while it has spec.finalizers (SUB-043).
func TestObjectKeptAfterLastFinalizer(t *testing.T) {
	f := newRaceFixture(t, true)
	f.addFinalizer(storage.Write{})
	f.delete(f.cron("a"), metav1.DeleteOptions{})
	slow := f.get(f.cron("a"))
	set(slow, "metadata.deletionGracePeriodSeconds", int64(30))
	f.commit(storage.Write{Key: aKey, Value: object.Pack(slow, 0).JSON(), Expected: f.Store.Head().Get(aKey).Modified})
	f.mustPatch(f.cron("a"), mergePatch, `{"metadata":{"finalizers":null}}`)
	equal(t, "finalizers during the grace period", valueAt(f.get(f.cron("a")), "metadata.finalizers"), nil)

	f.mustCreate(f.namespace(""), `{"metadata":{"name":"n"}}`)
	f.delete(f.namespace("n"), metav1.DeleteOptions{})
	f.mustPatch(f.namespace("n"), mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	equal(t, "phase", valueAt(f.get(f.namespace("n")), "status.phase"), "Terminating")
}

// TestApplyMatchesCreate checks that an apply stores an object in the same form as a create (CRD-056).
func TestApplyMatchesCreate(t *testing.T) {
	f := newFixture(t)
	schema := strings.Replace(cronTabSchema, `"color":{"type":"string"}`,
		`"color":{"type":"string"},"pod":{"type":"object","x-kubernetes-embedded-resource":true,`+
			`"x-kubernetes-preserve-unknown-fields":true}`, 1)
	f.writeCRD(cronTabs(schema, schema))
	secret := f.target("", "v1", "secrets", "default")
	for _, c := range []struct {
		at   verb.Target
		body string
		part string
	}{
		{secret, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q},"data":{"k":"dg=="}}`, "type"},
		{f.cron(""), `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":%q},` +
			`"spec":{"pod":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","annotations":{},` +
			`"finalizers":[]}}}}`, "spec"},
	} {
		created := treeOf(t, f.mustCreate(c.at, fmt.Sprintf(c.body, "created")))
		at := c.at
		at.Name = "applied"
		got := f.mustPatch(at, applyPatch, fmt.Sprintf(c.body, "applied"))
		equal(t, c.part, got[c.part], created[c.part])
	}
}

// notifyingContext is a context that calls onDone before each call of Done.
type notifyingContext struct {
	context.Context
	onDone func()
}

func (a notifyingContext) Done() <-chan struct{} {
	a.onDone()
	return a.Context.Done()
}

// TestCRDWriteWaitsForCatalog checks that a write of a CRD returns only after the catalog includes it (CRD-015).
func TestCRDWriteWaitsForCatalog(t *testing.T) {
	for name, write := range map[string]func(f *fixture, ctx context.Context, at verb.Target) error{
		"update": func(f *fixture, ctx context.Context, at verb.Target) error {
			p := verb.Patch{Type: mergePatch, Data: []byte(`{"metadata":{"labels":{"a":"b"}}}`)}
			_, _, err := f.Patch(ctx, at, p,
				f.caller)
			return err
		},
		"delete": func(f *fixture, ctx context.Context, at verb.Target) error {
			_, _, err := f.Delete(ctx, at, metav1.DeleteOptions{}, f.caller)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.createCRD("foos", "Foo", "x")
			blocked, gate := make(chan struct{}, 1), make(chan struct{})
			open := sync.OnceFunc(func() { close(gate) })
			t.Cleanup(open)
			var evaluated int64
			f.raceBeforeCommit(func(storage.Write) { // blocks the catalog while it processes an earlier event
				f.Live.OnEvents(func([]*storage.Event) {
					select {
					case blocked <- struct{}{}:
						<-gate
					default:
					}
				})
				rec := f.Store.Head().Get(cronTabKey)
				if _, err := f.store.Commit(f.ctx,
					[]storage.Write{{Key: rec.Key, Value: rec.Value, Expected: rec.Modified}}); err != nil {
					t.Fatal(err)
				}
				<-blocked
				evaluated = f.Store.Head().Revision()
			})
			ctx := notifyingContext{f.ctx, func() { // unblocks the catalog once the write waits for it
				if evaluated > 0 && f.Store.Head().Revision() > evaluated {
					open()
				}
			}}
			if err := write(f, ctx, f.crd("foos.example.com")); err != nil {
				t.Fatal(err)
			}
			stored := f.Store.Head().Get(definition.CRDPrefix + "foos.example.com").Modified
			served := f.Live.Load().Find("example.com", "v1", "foos").Definition.Custom.Revision
			equal(t, "revision in the catalog", served, stored)
		})
	}
}
