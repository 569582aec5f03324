package engine

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// aKey is the storage key of the CronTab "a".
const aKey = "/registry/stable.example.com/crontabs/default/a"

// annotate sets an annotation of the CronTab "a" as another writer.
func (f *fixture) annotate(storage.Write) {
	c := f.caller
	c.FieldManager = "other"
	if _, _, err := f.Patch(f.ctx, f.cron("a"), verb.Patch{Type: mergePatch,
		Data: []byte(`{"metadata":{"annotations":{"other":"yes"}}}`)}, c); err != nil {
		f.Fatal(err)
	}
}

// recreate deletes the CronTab "a" and creates a new object with the same name.
func (f *fixture) recreate(storage.Write) {
	f.removeKey(aKey)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a","annotations":{"other":"yes"}},"spec":{"replicas":2}}`)
}

// TestWriteConflicts checks that the server retries a conflicting write once, on the newest object, and that the
// generation increases once. If the write has a resourceVersion, it is rejected (CRD-018, CRD-053).
func TestWriteConflicts(t *testing.T) {
	for _, v := range retriedVerbs {
		t.Run(v.name, func(t *testing.T) {
			f := newRaceFixture(t, true)
			r := f.raceBeforeCommit(f.annotate)
			if err := v.do(f, f.cron("a")); err != nil {
				t.Fatal(err)
			}
			r.expectAttempts(2)
			got := f.get(f.cron("a"))
			equal(t, "both changes", []any{valueAt(got, v.path), valueAt(got, "metadata.annotations.other")},
				[]any{7, "yes"})
			generation := 2
			if v.path == "status.replicas" {
				generation = 1
			}
			equal(t, "generation", valueAt(got, "metadata.generation"), generation)
			owned := map[string]int{}
			for _, e := range managersOf(got) {
				owned[e.Manager]++
			}
			if owned["other"] != 1 || owned["tester"] != len(managersOf(got))-1 {
				t.Errorf("got %v entries of managedFields, want one of other and the rest of tester", owned)
			}
		})
	}
	rejected := append(slices.Clone(updateVerbs), verbCase{name: "patch", do: func(f *fixture, at verb.Target) error {
		_, err := f.patch(at, mergePatch, fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"any":{"n":7}}}`,
			object.ResourceVersion(f.get(at))))
		return err
	}}, verbCase{name: "scale", do: func(f *fixture, at verb.Target) error {
		_, err := f.edit(subresource(at, "scale"), func(o object.Tree) { set(o, "spec.replicas", int64(7)) })
		return err
	}})
	for _, v := range rejected {
		t.Run("resourceVersion/"+v.name, func(t *testing.T) {
			f := newRaceFixture(t, true)
			r := f.raceBeforeCommit(f.annotate)
			f.expectStatus(v.do(f, f.cron("a")), 409, metav1.StatusReasonConflict, "the object has been modified")
			r.expectAttempts(1)
			equal(t, "generation after the other write", valueAt(f.get(f.cron("a")), "metadata.generation"), 1)
		})
	}
}

// TestConflictWithDeletion checks writes whose object is deleted before their commit. They return NotFound, except
// for an apply, which recreates the object (CRD-018, CRD-056).
func TestConflictWithDeletion(t *testing.T) {
	for _, v := range slices.Concat(retriedVerbs, updateVerbs) {
		t.Run(v.name, func(t *testing.T) {
			f := newRaceFixture(t, true)
			uid := object.UID(f.get(f.cron("a")))
			r := f.raceBeforeCommit(func(storage.Write) { f.removeKey(aKey) })
			err := v.do(f, f.cron("a"))
			if v.name != "apply" {
				r.expectAttempts(1)
				f.expectStatus(err, 404, metav1.StatusReasonNotFound, `crontabs.stable.example.com "a" not found`)
				equal(t, "stored", f.countStored(), 0)
				return
			}
			r.expectAttempts(2)
			if got := f.get(f.cron("a")); err != nil || object.UID(got) == uid || valueAt(got, "spec.replicas") != nil {
				t.Errorf("got %v, %v; want a new object without replicas", got, err)
			}
		})
	}
}

// TestNameConflict checks creates and applies if another object takes the name before their commit (CRD-052,
// CRD-054, CRD-056).
func TestNameConflict(t *testing.T) {
	same := func(f *fixture) func(storage.Write) {
		return func(write storage.Write) {
			tree := decode(f, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"uid":"u",`+
				`"namespace":"default","annotations":{"other":"yes"}}}`)
			object.Metadata(tree)["name"] = write.Key[len(aKey)-1:]
			f.commit(storage.Write{Key: write.Key, Value: object.Pack(tree, 0).JSON()})
		}
	}
	f := newRaceFixture(t, false)
	r := f.raceBeforeCommit(same(f))
	f.expectStatus(createVerbs[0].do(f, f.cron("a")), 409, metav1.StatusReasonAlreadyExists,
		`crontabs.stable.example.com "a" already exists`)
	r.expectAttempts(1)
	equal(t, "UID of the other object", valueAt(f.get(f.cron("a")), "metadata.uid"), "u")

	f = newRaceFixture(t, false)
	r = f.raceBeforeCommit(same(f))
	if err := createVerbs[1].do(f, f.cron("a")); err != nil {
		t.Fatal(err)
	}
	r.expectAttempts(2)
	got := f.get(f.cron("a"))
	equal(t, "object of the other writer after the apply", []any{valueAt(got, "metadata.uid"),
		valueAt(got, "metadata.annotations.other"), valueAt(got, "spec.any.n")}, []any{"u", "yes", 7})

	f = newRaceFixture(t, false)
	r = f.raceBeforeCommit(same(f))
	created := treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"generateName":"gen-"},"spec":{"image":"i"}}`))
	r.expectAttempts(2)
	equal(t, "objects", f.countStored(), 2)
	equal(t, "created object", f.get(f.cron(object.Name(created))), created)
	equal(t, "managers", len(managersOf(created)), 1)

	attempts := 0
	f.beforeCommit = func(write []storage.Write) { attempts++; same(f)(write[0]) }
	_, err := f.create(f.cron(""), `{"metadata":{"generateName":"gen-"}}`)
	f.expectStatus(err, 409, metav1.StatusReasonAlreadyExists,
		"the server was not able to generate a unique name for the object")
	equal(t, "generated names", attempts, 8)
}

// TestUnconditionalUpdateConflict checks that the server retries an update without a resourceVersion on the newest
// state. If the update specifies a UID, it changes only the object with this UID (CRD-018, CRD-053).
func TestUnconditionalUpdateConflict(t *testing.T) {
	const key = "/registry/configmaps/default/a"
	other := func(f *fixture, uid string) func(storage.Write) {
		return func(storage.Write) {
			tree := decode(f, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default",`+
				`"creationTimestamp":"2001-01-01T00:00:00Z"},"data":{"k":"2"}}`)
			object.Metadata(tree)["uid"] = uid
			f.commit(storage.Write{Key: key, Value: object.Pack(tree, 0).JSON(),
				Expected: f.Store.Head().Get(key).Modified})
		}
	}
	f := newFixture(t)
	uid := string(object.UID(treeOf(t, f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"},"data":{"k":"1"}}`))))
	r := f.raceBeforeCommit(other(f, uid))
	if _, err := f.update(f.configMap("a"), `{"metadata":{"name":"a","uid":"`+uid+`"},"data":{"j":"3"}}`); err != nil {
		t.Fatal(err)
	}
	r.expectAttempts(2)
	got := f.get(f.configMap("a"))
	equal(t, "updated", []any{got["data"], valueAt(got, "metadata.creationTimestamp")},
		[]any{map[string]any{"j": "3"}, "2001-01-01T00:00:00Z"})
	r = f.raceBeforeCommit(other(f, "another"))
	_, err := f.update(f.configMap("a"), `{"metadata":{"name":"a","uid":"`+uid+`"},"data":{"j":"4"}}`)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "Precondition failed: UID in precondition: "+uid+
		", UID in object meta: another")
	r.expectAttempts(1)
	equal(t, "data of the other object", f.get(f.configMap("a"))["data"], map[string]any{"k": "2"})

	f = newRaceFixture(t, true)
	uid = string(object.UID(f.get(f.cron("a"))))
	r = f.raceBeforeCommit(f.recreate)
	_, err = f.update(
		subresource(f.cron("a"), "scale"),
		`{"metadata":{"name":"a","uid":"`+uid+`"},"spec":{"replicas":7}}`,
	)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "Precondition failed: UID in precondition: "+uid)
	r.expectAttempts(1)
	equal(t, "replicas", valueAt(f.get(f.cron("a")), "spec.replicas"), 2)
}
