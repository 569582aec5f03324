package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// ownedFields is the text of what a manager owns through a subresource.
func ownedFields(tree object.Tree, manager, subresource string) string {
	entries, _ := valueAt(tree, "metadata.managedFields").([]any)
	for _, e := range entries {
		if e := e.(object.Tree); e["manager"] == manager && object.String(e, "subresource") == subresource {
			return string(object.AppendJSON(nil, object.Tree{"": e["fieldsV1"]}))
		}
	}
	return ""
}

// SUB-012 CRD-057: nobody owns through one endpoint what only the other writes.
func TestResetFieldsHaveNoOwner(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.namespace(""), `{"metadata":{"name":"n"}}`)
	for _, c := range []struct {
		at      Target
		data    string
		has, no string
	}{
		{f.cron("a"), `{"spec":{"image":"j"},"status":{"phase":"Done"}}`, "f:image", "f:status"},
		{f.cron("a").sub("status"), `{"spec":{"image":"k"},"status":{"phase":"Done"},"metadata":{"labels":{"x":"y"}}}`, "f:phase", "f:image"},
		{f.cron("a").sub("status"), `{"status":{"phase":"Gone"},"metadata":{"labels":{"x":"z"}}}`, "f:phase", "f:labels"},
		{f.namespace("n"), `{"metadata":{"labels":{"x":"y"}},"spec":{"finalizers":["example.com/x"]},"status":{"phase":"Odd"}}`, "f:labels", "f:status"},
		{f.namespace("n").sub("status"), `{"spec":{"finalizers":["example.com/x"]},"status":{"conditions":[{"type":"C","status":"True"}]}}`, "f:conditions", "f:finalizers"},
	} {
		if f.Store.Head().Get(aKey) == nil {
			f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`)
		}
		f.caller.FieldManager = "patcher"
		got := ownedFields(f.mustPatch(c.at, mergePatch, c.data), "patcher", c.at.Subresource)
		if !strings.Contains(got, c.has) || strings.Contains(got, c.no) {
			t.Errorf("after %s through %q: %s", c.data, c.at.Subresource, got)
		}
	}
}

// CRD-057: what a Go type encodes in any case, an empty spec and the like, is nobody's.
func TestEncodedZeroFieldsHaveNoOwner(t *testing.T) {
	f := newFixture(t)
	body := `{"metadata":{"name":"a"},"spec":{"ports":[{"port":80}]}}`
	made := treeOf(t, f.mustCreate(f.service(""), body))
	if got := ownedFields(made, "tester", ""); !strings.Contains(got, `"f:spec":{"f:`) || strings.Contains(got, "f:status") {
		t.Errorf("made by %s", got)
	}
	delete(object.Metadata(made), "managedFields")
	key := serviceKey("a")
	f.commit(storage.Write{Key: key, Value: object.Pack(made, 0).JSON(), Expected: f.Store.Head().Get(key).Modified})
	got := ownedFields(f.mustPatch(f.service("a"), applyPatch, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","labels":{"x":"y"}}}`), "before-first-apply", "")
	if !strings.Contains(got, `"f:spec":{"f:`) || strings.Contains(got, "f:status") {
		t.Errorf("before the first apply %s", got)
	}
}

func serviceKey(name string) string { return "/registry/services/specs/default/" + name }

// CRD-057: a client may say who owns what of an object that it creates, however often that is tried.
func TestCreateWithManagedFields(t *testing.T) {
	f := newFixture(t)
	r := f.raceBeforeCommit(func(storage.Write) {
		f.mustPatch(f.namespace("default"), mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	})
	made := treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"name":"a","managedFields":[{"manager":"given","operation":"Apply","apiVersion":"stable.example.com/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:color":{},"f:cronSpec":{}}}}]},"spec":{"image":"i","color":"red"}}`))
	r.expectAttempts(2)
	equal(t, "what is left to the one named", ownedFields(made, "given", ""), `{"":{"f:spec":{"f:cronSpec":{}}}}`)
}

// SUB-046: an update takes back nothing of a deletion that has begun.
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
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "metadata.deletionGracePeriodSeconds: Invalid value: 5: field is immutable")
}

// SUB-026: a Scale of no replicas says nothing of them, so that nobody owns them.
func TestScaleToZero(t *testing.T) {
	f := newRaceFixture(t, true)
	f.caller.FieldManager = "scaler"
	for _, n := range []string{"3", "0"} {
		if _, err := f.update(f.cron("a").sub("scale"), `{"metadata":{"name":"a"},"spec":{"replicas":`+n+`}}`); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"3": `{"":{"f:spec":{"f:replicas":{}}}}`, "0": ""}[n]
		equal(t, "owned at "+n, ownedFields(f.get(f.cron("a")), "scaler", "scale"), want)
	}
	f.mustCreate(f.cron(""), `{"metadata":{"name":"b"}}`)
	_, err := f.patch(f.cron("b").sub("scale"), applyPatch, `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"b"}}`)
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest, `the spec replicas field ".spec.replicas" cannot be empty`)
}

// CRD-052: who creates what is on its way out is told so.
func TestCreateOverTerminatingObject(t *testing.T) {
	f := newRaceFixture(t, true)
	f.addFinalizer(storage.Write{})
	f.delete(f.cron("a"), metav1.DeleteOptions{})
	f.expectStatus(createVerbs[0].do(f, f.cron("a")), 409, metav1.StatusReasonAlreadyExists, `object is being deleted: crontabs.stable.example.com "a" already exists`)
}

// CRD-066: repeated owner references are dropped with a warning by every verb.
func TestDuplicateOwnersOfEveryVerb(t *testing.T) {
	const owner = `{"apiVersion":"v1","kind":"ConfigMap","name":"o","uid":"u1"}`
	const body = `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a","ownerReferences":[` + owner + `,` + owner + `]}}`
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
			equal(t, "owners", len(object.OwnerReferences(f.get(f.cron("a")))), 1)
			if len(f.warnings) != 1 || !strings.Contains(f.warnings[0], "duplicate UID(s) observed: u1") {
				t.Errorf("warnings %v", f.warnings)
			}
		})
	}
}

// SUB-026: a Scale is its object's by name and namespace.
func TestScaleNameMismatch(t *testing.T) {
	f := newRaceFixture(t, true)
	for body, text := range map[string]string{
		`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"b"},"spec":{"replicas":7}}`:                     "the name of the object (b) does not match the name on the URL (a)",
		`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"a","namespace":"other"},"spec":{"replicas":7}}`: "the namespace of the provided object does not match the namespace sent on the request",
	} {
		_, err := f.update(f.cron("a").sub("scale"), body)
		f.expectStatus(err, 400, metav1.StatusReasonBadRequest, text)
		_, err = f.patch(f.cron("a").sub("scale"), mergePatch, body)
		f.expectStatus(err, 400, metav1.StatusReasonBadRequest, text)
		_, _, err = f.Patch(f.ctx, f.cron("a").sub("scale"), Patch{Type: applyPatch, Data: []byte(body), Force: true}, f.caller)
		f.expectStatus(err, 400, metav1.StatusReasonBadRequest, text)
	}
}

// CRD-018 CRD-056: a resourceVersion does no harm to what makes a new object by a name.
func TestUpsertIgnoresResourceVersion(t *testing.T) {
	f := newFixture(t)
	lease := f.target("coordination.k8s.io", "v1", "leases", "default")
	lease.Name = "l"
	if _, created, err := f.Update(f.ctx, lease, f.body(lease, `{"metadata":{"name":"l","resourceVersion":"1"}}`), f.caller); err != nil || !created {
		t.Errorf("created %v, %v", created, err)
	}
	f.mustPatch(f.cron("a"), applyPatch, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a","resourceVersion":"1"}}`)
}

// CRD-072: an update's metadata is looked at as a new object's is.
func TestUpdateInvalidMetadata(t *testing.T) {
	f := newRaceFixture(t, true)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
	for _, at := range []Target{f.cron("a"), f.configMap("a")} {
		_, err := f.patch(at, mergePatch, `{"metadata":{"finalizers":["no good/x"]}}`)
		f.expectStatus(err, 422, metav1.StatusReasonInvalid, "metadata.finalizers")
		_, err = f.patch(at, mergePatch, `{"metadata":{"managedFields":[{"manager":"`+strings.Repeat("m", 200)+`","operation":"Update","apiVersion":"`+at.Version.APIVersion+
			`","time":"2026-05-06T07:08:09Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:color":{}}}}]}}`)
		f.expectStatus(err, 422, metav1.StatusReasonInvalid, "metadata.managedFields[0].manager: Too long")
	}
}

// SUB-038: a kind that counts no generation counts none when its objects begin to go.
func TestDeleteWithoutGeneration(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a","finalizers":["example.com/x"]}}`)
	o, _ := f.delete(f.configMap("a"), metav1.DeleteOptions{})
	equal(t, "generation", valueAt(treeOf(t, o), "metadata.generation"), nil)
	_, _, err := f.Delete(f.ctx, f.configMap("a").sub("status"), metav1.DeleteOptions{}, f.caller)
	f.expectStatus(err, 405, metav1.StatusReasonMethodNotAllowed, "delete is not supported on resources of kind")
}

// Who deletes what is to go later has it go now.
func TestDeleteBeforeDeletionTime(t *testing.T) {
	f := newRaceFixture(t, true)
	f.addFinalizer(storage.Write{})
	later := f.get(f.cron("a"))
	set(later, "metadata.deletionTimestamp", "2036-01-01T00:00:00Z")
	f.commit(storage.Write{Key: aKey, Value: object.Pack(later, 0).JSON(), Expected: f.Store.Head().Get(aKey).Modified})
	o, _ := f.delete(f.cron("a"), metav1.DeleteOptions{})
	equal(t, "deletion", valueAt(treeOf(t, o), "metadata.deletionTimestamp"), "2026-05-06T07:08:09Z")
}

// An Event lives an hour from its last write, whatever that was.
func TestEventsExpire(t *testing.T) {
	f := newFixture(t)
	at := f.target("", "v1", "events", "default")
	expires := func(after string) {
		t.Helper()
		if f.Store.Head().Get("/registry/events/default/e").Expires.IsZero() {
			t.Errorf("after a %s it lives for ever", after)
		}
	}
	f.mustCreate(at, `{"metadata":{"name":"e","finalizers":["example.com/x"]},"involvedObject":{"kind":"Pod","name":"p","namespace":"default"},"reason":"Started","type":"Normal"}`)
	expires("create")
	at.Name = "e"
	f.mustPatch(at, mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	expires("patch")
	f.delete(at, metav1.DeleteOptions{})
	expires("deletion")
}

// CRD-057: a write that changes nothing but who owns what is a write.
func TestManagedFieldsOnlyChange(t *testing.T) {
	f := newRaceFixture(t, true)
	before := f.get(f.cron("a"))
	f.mustEdit(f.cron("a"), func(o object.Tree) {
		valueAt(o, "metadata.managedFields").([]any)[0].(object.Tree)["manager"] = "retset" // as long as the one before
	})
	after := f.get(f.cron("a"))
	if object.ResourceVersion(after) == object.ResourceVersion(before) || ownedFields(after, "retset", "") == "" {
		t.Errorf("%v", after["metadata"])
	}
}

// SCH-028: what lies as another schema had it is stored anew by a write that changes nothing, be the new form as long as the old.
func TestNoOpWriteStoresUnderNewSchema(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"color":"red"}}`)
	other := strings.Replace(cronTabSchema, `"color":{"type":"string"}`, `"hue":{"type":"string","default":"redxx"}`, 1)
	f.writeCRD(cronTabs(other, other))
	before := f.Store.Head().Get(aKey)
	o := f.mustEdit(f.cron("a"), func(object.Tree) {})
	if o.Revision == before.Modified || len(o.Record.Value) != len(before.Value) {
		t.Errorf("%s became %s", before.Value, o.Record.Value)
	}
}

// CRD-065: a collection is deleted as far as its limit says, and otherwise to its end, page by page.
func TestDeleteCollectionLimits(t *testing.T) {
	f := newFixture(t)
	var writes []storage.Write
	for i := range collectionPage + 2 {
		name := fmt.Sprintf("c%04d", i)
		tree := object.Tree{"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": object.Tree{"name": name, "namespace": "default", "uid": name}}
		writes = append(writes, storage.Write{Key: strings.TrimSuffix(aKey, "a") + name, Value: object.Pack(tree, 0).JSON()})
	}
	for some := range slices.Chunk(writes, 100) {
		f.commit(some...)
	}
	page, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, ListOptions{Limit: 1}, f.caller)
	if err != nil || len(page.Items) != 1 || page.Continue == "" {
		t.Fatalf("%v, %v", page, err)
	}
	equal(t, "left", f.countStored(), collectionPage+1)
	all, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, ListOptions{}, f.caller)
	if err != nil || len(all.Items) != collectionPage+1 || all.Continue != "" {
		t.Fatalf("%d, %v", len(all.Items), err)
	}
	equal(t, "left", f.countStored(), 0)
}

// SUB-013: a part that goes is a change that the generation counts.
func TestRemovedFieldIncrementsGeneration(t *testing.T) {
	f := newRaceFixture(t, true)
	next := f.mustEdit(f.cron("a"), func(o object.Tree) { delete(o, "spec") })
	equal(t, "generation", valueAt(treeOf(t, next), "metadata.generation"), 2)
}

// SUB-043: what has lost its last finalizer stays as long as something else keeps it: time, or the content of a namespace.
func TestObjectKeptAfterLastFinalizer(t *testing.T) {
	f := newRaceFixture(t, true)
	f.addFinalizer(storage.Write{})
	f.delete(f.cron("a"), metav1.DeleteOptions{})
	slow := f.get(f.cron("a"))
	set(slow, "metadata.deletionGracePeriodSeconds", int64(30))
	f.commit(storage.Write{Key: aKey, Value: object.Pack(slow, 0).JSON(), Expected: f.Store.Head().Get(aKey).Modified})
	f.mustPatch(f.cron("a"), mergePatch, `{"metadata":{"finalizers":null}}`)
	equal(t, "finalizers of what goes later", valueAt(f.get(f.cron("a")), "metadata.finalizers"), nil)

	f.mustCreate(f.namespace(""), `{"metadata":{"name":"n"}}`)
	f.delete(f.namespace("n"), metav1.DeleteOptions{})
	f.mustPatch(f.namespace("n"), mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	equal(t, "phase", valueAt(f.get(f.namespace("n")), "status.phase"), "Terminating")
}

// CRD-056: what is applied gets the form that a created object has.
func TestApplyMatchesCreate(t *testing.T) {
	f := newFixture(t)
	schema := strings.Replace(cronTabSchema, `"color":{"type":"string"}`, `"color":{"type":"string"},"pod":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}`, 1)
	f.writeCRD(cronTabs(schema, schema))
	secret := f.target("", "v1", "secrets", "default")
	for _, c := range []struct {
		at   Target
		body string
		part string
	}{
		{secret, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q},"data":{"k":"dg=="}}`, "type"},
		{f.cron(""), `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":%q},"spec":{"pod":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","annotations":{},"finalizers":[]}}}}`, "spec"},
	} {
		made := treeOf(t, f.mustCreate(c.at, fmt.Sprintf(c.body, "created")))
		at := c.at
		at.Name = "applied"
		got := f.mustPatch(at, applyPatch, fmt.Sprintf(c.body, "applied"))
		equal(t, c.part, got[c.part], made[c.part])
	}
}

// notifyingContext is a context that tells when somebody is about to wait for its end.
type notifyingContext struct {
	context.Context
	onDone func()
}

func (a notifyingContext) Done() <-chan struct{} {
	a.onDone()
	return a.Context.Done()
}

// CRD-015: a write of a CRD returns when the catalog knows of it, and not before.
func TestCRDWriteWaitsForCatalog(t *testing.T) {
	for name, write := range map[string]func(f *fixture, ctx context.Context, at Target) error{
		"update": func(f *fixture, ctx context.Context, at Target) error {
			_, _, err := f.Patch(ctx, at, Patch{Type: mergePatch, Data: []byte(`{"metadata":{"labels":{"a":"b"}}}`)}, f.caller)
			return err
		},
		"delete": func(f *fixture, ctx context.Context, at Target) error {
			_, _, err := f.Delete(ctx, at, metav1.DeleteOptions{}, f.caller)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.createCRD("foos", "Foo", "x")
			held, gate := make(chan struct{}, 1), make(chan struct{})
			open := sync.OnceFunc(func() { close(gate) })
			t.Cleanup(open)
			var judged int64
			f.raceBeforeCommit(func(storage.Write) { // the catalog is held up in what comes before the write
				f.Live.OnEvents(func([]*storage.Event) {
					select {
					case held <- struct{}{}:
						<-gate
					default:
					}
				})
				rec := f.Store.Head().Get(cronTabKey)
				if _, err := f.Store.Commit(f.ctx, []storage.Write{{Key: rec.Key, Value: rec.Value, Expected: rec.Modified}}); err != nil {
					t.Fatal(err)
				}
				<-held
				judged = f.Store.Head().Revision()
			})
			ctx := notifyingContext{f.ctx, func() { // until the caller waits for it
				if judged > 0 && f.Store.Head().Revision() > judged {
					open()
				}
			}}
			if err := write(f, ctx, f.crd("foos.example.com")); err != nil {
				t.Fatal(err)
			}
			stored := f.Store.Head().Get("/registry/apiextensions.k8s.io/customresourcedefinitions/foos.example.com").Modified
			equal(t, "revision in the catalog", f.Live.Load().Find("example.com", "v1", "foos").Definition.Custom.Revision, stored)
		})
	}
}
