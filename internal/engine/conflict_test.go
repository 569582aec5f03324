package engine

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

const aKey = "/registry/stable.example.com/crontabs/default/a"

// annotate is another's write to a.
func (f *fixture) annotate(storage.Write) {
	c := f.caller
	c.FieldManager = "other"
	if _, _, err := f.Patch(f.ctx, f.cron("a"), Patch{Type: mergePatch, Data: []byte(`{"metadata":{"annotations":{"other":"yes"}}}`)}, c); err != nil {
		f.Fatal(err)
	}
}

// recreate is another's deletion of a and creation of one of the same name.
func (f *fixture) recreate(storage.Write) {
	f.removeKey(aKey)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a","annotations":{"other":"yes"}},"spec":{"replicas":2}}`)
}

// CRD-018 CRD-053: a change that another comes before is made once more, to what that has left, and counts as one. What carries a
// resourceVersion is refused.
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
			equal(t, "both", []any{valueAt(got, v.path), valueAt(got, "metadata.annotations.other")}, []any{7, "yes"})
			generation := 2
			if v.path == "status.replicas" {
				generation = 1
			}
			equal(t, "generation", valueAt(got, "metadata.generation"), generation)
			owned := map[string]int{}
			for _, e := range managedFields(object.Metadata(got)) {
				owned[e.Manager]++
			}
			if owned["other"] != 1 || owned["tester"] != len(managedFields(object.Metadata(got)))-1 {
				t.Errorf("owners %v", owned)
			}
		})
	}
	refused := append(slices.Clone(updateVerbs), verb{name: "patch", do: func(f *fixture, at Target) error {
		_, err := f.patch(at, mergePatch, fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"any":{"n":7}}}`, object.ResourceVersion(f.get(at))))
		return err
	}}, verb{name: "scale", do: func(f *fixture, at Target) error {
		_, err := f.edit(at.sub("scale"), func(o object.Tree) { set(o, "spec.replicas", int64(7)) })
		return err
	}})
	for _, v := range refused {
		t.Run("resourceVersion/"+v.name, func(t *testing.T) {
			f := newRaceFixture(t, true)
			r := f.raceBeforeCommit(f.annotate)
			f.expectStatus(v.do(f, f.cron("a")), 409, metav1.StatusReasonConflict, "the object has been modified")
			r.expectAttempts(1)
			equal(t, "left by the other", valueAt(f.get(f.cron("a")), "metadata.generation"), 1)
		})
	}
}

// CRD-018 CRD-056: what is deleted before a change of it is not there, except for an apply, which makes it anew.
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
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// CRD-052 CRD-054 CRD-056: what a name finds taken by the time of its commit.
func TestNameConflict(t *testing.T) {
	same := func(f *fixture) func(storage.Write) {
		return func(judged storage.Write) {
			tree := decode(f, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"uid":"u","namespace":"default","annotations":{"other":"yes"}}}`)
			object.Metadata(tree)["name"] = judged.Key[len(aKey)-1:]
			f.commit(storage.Write{Key: judged.Key, Value: object.Pack(tree, 0).JSON()})
		}
	}
	f := newRaceFixture(t, false)
	r := f.raceBeforeCommit(same(f))
	f.expectStatus(createVerbs[0].do(f, f.cron("a")), 409, metav1.StatusReasonAlreadyExists, `crontabs.stable.example.com "a" already exists`)
	r.expectAttempts(1)
	equal(t, "of the other", valueAt(f.get(f.cron("a")), "metadata.uid"), "u")

	f = newRaceFixture(t, false)
	r = f.raceBeforeCommit(same(f))
	if err := createVerbs[1].do(f, f.cron("a")); err != nil {
		t.Fatal(err)
	}
	r.expectAttempts(2)
	got := f.get(f.cron("a"))
	equal(t, "applied to what the other made", []any{valueAt(got, "metadata.uid"), valueAt(got, "metadata.annotations.other"), valueAt(got, "spec.any.n")}, []any{"u", "yes", 7})

	f = newRaceFixture(t, false)
	r = f.raceBeforeCommit(same(f))
	made := treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"generateName":"gen-"},"spec":{"image":"i"}}`))
	r.expectAttempts(2)
	equal(t, "objects", f.countStored(), 2)
	equal(t, "made", f.get(f.cron(object.Name(made))), made)
	equal(t, "owners", len(managedFields(object.Metadata(made))), 1)

	attempts := 0
	f.beforeCommit = func(judged []storage.Write) { attempts++; same(f)(judged[0]) }
	_, err := f.create(f.cron(""), `{"metadata":{"generateName":"gen-"}}`)
	f.expectStatus(err, 409, metav1.StatusReasonAlreadyExists, "the server was not able to generate a unique name for the object")
	equal(t, "names tried", attempts, nameAttempts)
}

// CRD-018 CRD-053: an update that demands no revision is made to the newest state, and to the object that it was meant for only.
func TestUnconditionalUpdateConflict(t *testing.T) {
	const key = "/registry/configmaps/default/a"
	other := func(f *fixture, uid string) func(storage.Write) {
		return func(storage.Write) {
			tree := decode(f, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","creationTimestamp":"2001-01-01T00:00:00Z"},"data":{"k":"2"}}`)
			object.Metadata(tree)["uid"] = uid
			f.commit(storage.Write{Key: key, Value: object.Pack(tree, 0).JSON(), Expected: f.Store.Head().Get(key).Modified})
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
	equal(t, "updated", []any{got["data"], valueAt(got, "metadata.creationTimestamp")}, []any{map[string]any{"j": "3"}, "2001-01-01T00:00:00Z"})
	r = f.raceBeforeCommit(other(f, "another"))
	_, err := f.update(f.configMap("a"), `{"metadata":{"name":"a","uid":"`+uid+`"},"data":{"j":"4"}}`)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "Precondition failed: UID in precondition: "+uid+", UID in object meta: another")
	r.expectAttempts(1)
	equal(t, "left by the other", f.get(f.configMap("a"))["data"], map[string]any{"k": "2"})

	f = newRaceFixture(t, true)
	uid = string(object.UID(f.get(f.cron("a"))))
	r = f.raceBeforeCommit(f.recreate)
	_, err = f.update(f.cron("a").sub("scale"), `{"metadata":{"name":"a","uid":"`+uid+`"},"spec":{"replicas":7}}`)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "Precondition failed: UID in precondition: "+uid)
	r.expectAttempts(1)
	equal(t, "replicas", valueAt(f.get(f.cron("a")), "spec.replicas"), 2)
}
