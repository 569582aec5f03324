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

// annotated is another's write to a.
func (w *world) annotated(storage.Write) {
	c := w.caller
	c.FieldManager = "other"
	if _, _, err := w.Patch(w.ctx, w.cron("a"), Patch{Type: merging, Data: []byte(`{"metadata":{"annotations":{"other":"yes"}}}`)}, c); err != nil {
		w.Fatal(err)
	}
}

// recreated is another's deletion of a and creation of one of the same name.
func (w *world) recreated(storage.Write) {
	w.remove(aKey)
	w.mustCreate(w.cron(""), `{"metadata":{"name":"a","annotations":{"other":"yes"}},"spec":{"replicas":2}}`)
}

// CRD-018 CRD-053: a change that another comes before is made once more, to what that has left, and counts as one. What carries a
// resourceVersion is refused.
func TestOvertaken(t *testing.T) {
	for _, v := range verbs {
		t.Run(v.name, func(t *testing.T) {
			w := newRace(t, true)
			r := w.before(w.annotated)
			if err := v.do(w, w.cron("a")); err != nil {
				t.Fatal(err)
			}
			r.tried(2)
			got := w.get(w.cron("a"))
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
	refused := append(slices.Clone(updates), verb{name: "patch", do: func(w *world, at Target) error {
		_, err := w.patch(at, merging, fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"any":{"n":7}}}`, object.ResourceVersion(w.get(at))))
		return err
	}}, verb{name: "scale", do: func(w *world, at Target) error {
		_, err := w.edit(at.sub("scale"), func(o object.Tree) { set(o, "spec.replicas", int64(7)) })
		return err
	}})
	for _, v := range refused {
		t.Run("resourceVersion/"+v.name, func(t *testing.T) {
			w := newRace(t, true)
			r := w.before(w.annotated)
			w.refused(v.do(w, w.cron("a")), 409, metav1.StatusReasonConflict, "the object has been modified")
			r.tried(1)
			equal(t, "left by the other", valueAt(w.get(w.cron("a")), "metadata.generation"), 1)
		})
	}
}

// CRD-018 CRD-056: what is deleted before a change of it is not there, except for an apply, which makes it anew.
func TestOvertakenByDeletion(t *testing.T) {
	for _, v := range slices.Concat(verbs, updates) {
		t.Run(v.name, func(t *testing.T) {
			w := newRace(t, true)
			uid := object.UID(w.get(w.cron("a")))
			r := w.before(func(storage.Write) { w.remove(aKey) })
			err := v.do(w, w.cron("a"))
			if v.name != "apply" {
				r.tried(1)
				w.refused(err, 404, metav1.StatusReasonNotFound, `crontabs.stable.example.com "a" not found`)
				equal(t, "stored", w.stored(), 0)
				return
			}
			r.tried(2)
			if got := w.get(w.cron("a")); err != nil || object.UID(got) == uid || valueAt(got, "spec.replicas") != nil {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// CRD-052 CRD-054 CRD-056: what a name finds taken by the time of its commit.
func TestNameTakenMeanwhile(t *testing.T) {
	same := func(w *world) func(storage.Write) {
		return func(judged storage.Write) {
			tree := decode(w, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"uid":"u","namespace":"default","annotations":{"other":"yes"}}}`)
			object.Metadata(tree)["name"] = judged.Key[len(aKey)-1:]
			w.commit(storage.Write{Key: judged.Key, Value: object.Pack(tree, 0).JSON()})
		}
	}
	w := newRace(t, false)
	r := w.before(same(w))
	w.refused(creations[0].do(w, w.cron("a")), 409, metav1.StatusReasonAlreadyExists, `crontabs.stable.example.com "a" already exists`)
	r.tried(1)
	equal(t, "of the other", valueAt(w.get(w.cron("a")), "metadata.uid"), "u")

	w = newRace(t, false)
	r = w.before(same(w))
	if err := creations[1].do(w, w.cron("a")); err != nil {
		t.Fatal(err)
	}
	r.tried(2)
	got := w.get(w.cron("a"))
	equal(t, "applied to what the other made", []any{valueAt(got, "metadata.uid"), valueAt(got, "metadata.annotations.other"), valueAt(got, "spec.any.n")}, []any{"u", "yes", 7})

	w = newRace(t, false)
	r = w.before(same(w))
	made := treeOf(t, w.mustCreate(w.cron(""), `{"metadata":{"generateName":"gen-"},"spec":{"image":"i"}}`))
	r.tried(2)
	equal(t, "objects", w.stored(), 2)
	equal(t, "made", w.get(w.cron(object.Name(made))), made)
	equal(t, "owners", len(managedFields(object.Metadata(made))), 1)

	attempts := 0
	w.beforeCommit = func(judged []storage.Write) { attempts++; same(w)(judged[0]) }
	_, err := w.create(w.cron(""), `{"metadata":{"generateName":"gen-"}}`)
	w.refused(err, 409, metav1.StatusReasonAlreadyExists, "the server was not able to generate a unique name for the object")
	equal(t, "names tried", attempts, nameAttempts)
}

// CRD-018 CRD-053: an update that demands no revision is made to the newest state, and to the object that it was meant for only.
func TestUnconditionalUpdateOvertaken(t *testing.T) {
	const key = "/registry/configmaps/default/a"
	other := func(w *world, uid string) func(storage.Write) {
		return func(storage.Write) {
			tree := decode(w, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","creationTimestamp":"2001-01-01T00:00:00Z"},"data":{"k":"2"}}`)
			object.Metadata(tree)["uid"] = uid
			w.commit(storage.Write{Key: key, Value: object.Pack(tree, 0).JSON(), Expected: w.Store.Head().Get(key).Modified})
		}
	}
	w := newWorld(t)
	uid := string(object.UID(treeOf(t, w.mustCreate(w.configMap(""), `{"metadata":{"name":"a"},"data":{"k":"1"}}`))))
	r := w.before(other(w, uid))
	if _, err := w.update(w.configMap("a"), `{"metadata":{"name":"a","uid":"`+uid+`"},"data":{"j":"3"}}`); err != nil {
		t.Fatal(err)
	}
	r.tried(2)
	got := w.get(w.configMap("a"))
	equal(t, "updated", []any{got["data"], valueAt(got, "metadata.creationTimestamp")}, []any{map[string]any{"j": "3"}, "2001-01-01T00:00:00Z"})
	r = w.before(other(w, "another"))
	_, err := w.update(w.configMap("a"), `{"metadata":{"name":"a","uid":"`+uid+`"},"data":{"j":"4"}}`)
	w.refused(err, 409, metav1.StatusReasonConflict, "Precondition failed: UID in precondition: "+uid+", UID in object meta: another")
	r.tried(1)
	equal(t, "left by the other", w.get(w.configMap("a"))["data"], map[string]any{"k": "2"})

	w = newRace(t, true)
	uid = string(object.UID(w.get(w.cron("a"))))
	r = w.before(w.recreated)
	_, err = w.update(w.cron("a").sub("scale"), `{"metadata":{"name":"a","uid":"`+uid+`"},"spec":{"replicas":7}}`)
	w.refused(err, 409, metav1.StatusReasonConflict, "Precondition failed: UID in precondition: "+uid)
	r.tried(1)
	equal(t, "replicas", valueAt(w.get(w.cron("a")), "spec.replicas"), 2)
}
