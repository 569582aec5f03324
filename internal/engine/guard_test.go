package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// race is a write that another one comes before, after it has been judged.
type race struct {
	*world
	attempts int // how often the write came to its commit
}

// before has other write once the next write has been judged and is about to be committed. It is told what that is.
func (w *world) before(other func(judged storage.Write)) *race {
	r := &race{world: w}
	w.beforeCommit = func(writes []storage.Write) {
		if r.attempts++; r.attempts > 1 {
			return
		}
		hook := w.beforeCommit
		w.beforeCommit = nil // the other write has none before it
		other(writes[0])
		w.beforeCommit = hook
	}
	return r
}

// while has other write once a built-in kind has looked at what others have stored and is about to look again, to say what its
// judgement relies on. It tells how often the write came to its commit.
func (w *world) while(other func()) *race {
	r := &race{world: w}
	w.beforeCommit = func([]storage.Write) { r.attempts++ }
	looks := 0
	w.looking = func() {
		if looks++; looks == 2 {
			hook := w.beforeCommit
			w.beforeCommit, w.looking = nil, nil
			other()
			w.beforeCommit = hook
		}
	}
	return r
}

// tried checks how often the write came to its commit.
func (r *race) tried(attempts int) {
	r.Helper()
	equal(r, "attempts that came to their commit", r.attempts, attempts)
}

// namespace addresses a namespace.
func (w *world) namespace(name string) Target {
	w.Helper()
	t := w.at("", "v1", "namespaces", "")
	t.Name = name
	return t
}

// stored is how many CronTabs there are.
func (w *world) stored() int {
	return w.Store.Head().Count("/registry/stable.example.com/crontabs/", "")
}

// remove deletes a key behind the engine's back.
func (w *world) remove(key string) {
	w.Helper()
	rec := w.Store.Head().Get(key)
	if rec == nil {
		w.Fatalf("%s is gone already", key)
	}
	w.commit(storage.Write{Key: key, Expected: rec.Modified})
}

// verb is a way to write the CronTab a, which has one replica and no image.
type verb struct {
	name string
	do   func(w *world, at Target) error
	path string // what the verb sets to 7
}

func patching(kind types.PatchType, sub, data string) func(*world, Target) error {
	return func(w *world, at Target) error {
		data := strings.Replace(data, "VERSION", at.Version.APIVersion, 1)
		_, err := w.patch(at.sub(sub), kind, data)
		return err
	}
}

// verbs are those that change what is there, as often as others get in between.
var verbs = []verb{
	{"merge patch", patching(merging, "", `{"spec":{"any":{"n":7}}}`), "spec.any.n"},
	{"JSON patch", patching(jsonPatch, "", `[{"op":"add","path":"/spec/any","value":{"n":7}}]`), "spec.any.n"},
	{"apply", patching(applying, "", `{"apiVersion":"VERSION","kind":"CronTab","metadata":{"name":"a"},"spec":{"any":{"n":7}}}`), "spec.any.n"},
	{"status patch", patching(merging, "status", `{"status":{"replicas":7}}`), "status.replicas"},
	{"status apply", patching(applying, "status", `{"apiVersion":"VERSION","kind":"CronTab","metadata":{"name":"a"},"status":{"replicas":7}}`), "status.replicas"},
	{"scale update", func(w *world, at Target) error {
		_, err := w.update(at.sub("scale"), `{"metadata":{"name":"a"},"spec":{"replicas":7}}`)
		return err
	}, "spec.replicas"},
	{"scale patch", patching(merging, "scale", `{"spec":{"replicas":7}}`), "spec.replicas"},
	{"scale apply", func(w *world, at Target) error {
		_, _, err := w.Patch(w.ctx, at.sub("scale"), Patch{Type: applying, Force: true,
			Data: []byte(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"a"},"spec":{"replicas":7}}`)}, w.caller)
		return err
	}, "spec.replicas"},
}

// updates replace what the caller has read.
var updates = []verb{
	{"update", func(w *world, at Target) error {
		_, err := w.edit(at, func(o object.Tree) { set(o, "spec.any", object.Tree{"n": int64(7)}) })
		return err
	}, "spec.any.n"},
	{"status update", func(w *world, at Target) error {
		_, err := w.edit(at.sub("status"), func(o object.Tree) { set(o, "status.replicas", int64(7)) })
		return err
	}, "status.replicas"},
}

// creations make a.
var creations = []verb{
	{"create", func(w *world, at Target) error {
		at.Name = ""
		_, err := w.create(at, `{"metadata":{"name":"a"},"spec":{"any":{"n":7}}}`)
		return err
	}, "spec.any.n"},
	verbs[2],
}

// newRace is a world with a, unless it is to be made.
func newRace(t *testing.T, there bool) *world {
	w := newWorld(t)
	if there {
		w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":1}}`)
	}
	return w
}

// CRD-031: once a namespace is terminating, or gone, nothing comes into it any more, however close the race.
func TestNamespaceIsGuarded(t *testing.T) {
	for _, v := range creations {
		t.Run(v.name, func(t *testing.T) {
			w := newRace(t, false)
			w.mustCreate(w.namespace(""), `{"metadata":{"name":"n"}}`)
			at := w.cron("a")
			at.Namespace = "n"
			r := w.before(func(storage.Write) { w.delete(w.namespace("n"), metav1.DeleteOptions{}) })
			w.refused(v.do(w, at), 403, metav1.StatusReasonForbidden, `"a" is forbidden: unable to create new content in namespace n because it is being terminated`)
			r.tried(1)
			w.before(func(storage.Write) { w.remove("/registry/namespaces/default") })
			w.refused(v.do(w, w.cron("a")), 404, metav1.StatusReasonNotFound, `namespaces "default" not found`)
			equal(t, "stored", w.stored(), 0)
		})
	}
}

// CRD-031: a namespace that has merely changed makes a create start over, of which its caller hears nothing.
func TestNamespaceThatChanges(t *testing.T) {
	w := newWorld(t)
	r := w.before(func(storage.Write) {
		w.mustPatch(w.namespace("default"), merging, `{"metadata":{"labels":{"a":"b"}}}`)
	})
	made := treeOf(t, w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`))
	r.tried(2)
	equal(t, "made", made, w.get(w.cron("a")))
	equal(t, "owners", len(managedFields(object.Metadata(made))), 1)
}

// However often a write starts over, its caller is warned once.
func TestWarnedOnce(t *testing.T) {
	for name, write := range map[string]func(w *world) *race{
		"guard": func(w *world) *race {
			r := w.before(func(storage.Write) {
				w.mustPatch(w.namespace("default"), merging, `{"metadata":{"labels":{"a":"b"}}}`)
			})
			w.mustCreate(w.cron(""), `{"metadata":{"name":"b","finalizers":["short"]}}`)
			return r
		},
		"generated name": func(w *world) *race {
			r := w.before(func(judged storage.Write) {
				w.commit(storage.Write{Key: judged.Key, Value: object.Pack(object.Tree{}, 0).JSON()})
			})
			w.mustCreate(w.cron(""), `{"metadata":{"generateName":"b-","finalizers":["short"]}}`)
			return r
		},
		"overtaken": func(w *world) *race {
			r := w.before(w.annotated)
			w.mustPatch(w.cron("a"), merging, `{"metadata":{"finalizers":["short"]}}`)
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRace(t, true)
			write(w).tried(2)
			equal(t, "warnings", w.warnings, []string{`metadata.finalizers: "short": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers`})
		})
	}
}

// CRD-044 CRD-029: nothing is created once the CRD is terminating, and nothing written at all once it is gone.
func TestCRDIsGuarded(t *testing.T) {
	manifest := cronTabs(cronTabSchema, cronTabSchema)
	for _, v := range creations {
		t.Run("terminating/"+v.name, func(t *testing.T) {
			w := newRace(t, false)
			r := w.before(func(storage.Write) {
				w.writeCRD(strings.Replace(manifest, `"type":"NamesAccepted"`, `"type":"Terminating","status":"True"},{"type":"NamesAccepted"`, 1))
			})
			w.refused(v.do(w, w.cron("a")), 403, metav1.StatusReasonForbidden, `"a" is forbidden: create not allowed while custom resource definition is terminating`)
			r.tried(1)
			equal(t, "stored", w.stored(), 0)
		})
	}
	for i, v := range slices.Concat(creations, verbs, updates) {
		t.Run("gone/"+v.name, func(t *testing.T) {
			w := newRace(t, i >= len(creations))
			head := int64(0)
			r := w.before(func(storage.Write) { w.remove(cronTabKey); head = w.Store.Head().Revision() })
			w.refused(v.do(w, w.cron("a")), 404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
			r.tried(1)
			equal(t, "changes", len(w.changes(head)), 0)
		})
	}
}

// VER-059 VER-064: what is written goes by the CRD as it is at the moment of the commit: its schema, and its storage version.
func TestCRDThatChanges(t *testing.T) {
	strict := strings.Replace(cronTabSchema, `"any":{"type":"object",`, `"any":{"type":"object","maxProperties":0,`, 1)
	strict = strings.Replace(strict, `"status":{"type":"object","properties":{"replicas":{"type":"integer"`, `"status":{"type":"object","properties":{"replicas":{"type":"integer","maximum":6`, 1)
	strict = strings.Replace(strict, `"image":{"type":"string"},"replicas":{"type":"integer"`, `"image":{"type":"string"},"replicas":{"type":"integer","maximum":6`, 1)
	for i, v := range slices.Concat(creations, verbs, updates) {
		t.Run("schema/"+v.name, func(t *testing.T) {
			w := newRace(t, i >= len(creations))
			r := w.before(func(storage.Write) { w.writeCRD(cronTabs(strict, strict)) })
			w.refused(v.do(w, w.cron("a")), 422, metav1.StatusReasonInvalid, "is invalid: "+strings.TrimSuffix(v.path, ".n")+": ")
			r.tried(1)
		})
		for from, to := range map[string]string{"v1": "v2", "v2": "v1"} {
			t.Run("storage version "+to+"/"+v.name, func(t *testing.T) {
				w := newRace(t, i >= len(creations))
				stored := func(at string) {
					w.versioned(has{name: "v1", served: true, stored: at == "v1"}, has{name: "v2", served: true, stored: at == "v2"})
				}
				stored(from)
				r := w.before(func(storage.Write) { stored(to) })
				if err := v.do(w, w.cron("a")); err != nil {
					t.Fatal(err)
				}
				r.tried(2)
				equal(t, "stored at", w.storedAt("a"), to)
				equal(t, v.path, valueAt(w.get(w.cron("a")), v.path), 7)
			})
		}
	}
}

// SUB-011: a subresource that its version loses before the commit is not written.
func TestSubresourceThatGoes(t *testing.T) {
	for _, v := range slices.Concat(verbs, updates) {
		if v.path == "spec.any.n" {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			w := newRace(t, true)
			r := w.before(func(storage.Write) {
				manifest := strings.ReplaceAll(cronTabs(cronTabSchema, cronTabSchema), `"subresources":{"status":{},"scale":{`, `"subresources":{},"other":{"scale":{`)
				w.writeCRD(manifest)
			})
			w.refused(v.do(w, w.cron("a")), 404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
			r.tried(1)
			equal(t, "left", valueAt(w.get(w.cron("a")), "spec.replicas"), 1)
		})
	}
}

// A guard that fails again and again is tried again as long as the caller waits, and no longer.
func TestStartingOverEndsWithTheRequest(t *testing.T) {
	w := newRace(t, true)
	for i, v := range []verb{{name: "create", do: func(w *world, at Target) error {
		at.Name = ""
		_, err := w.create(at, `{"metadata":{"name":"b"}}`)
		return err
	}}, verbs[0], {name: "delete", do: func(w *world, at Target) error {
		_, _, err := w.Delete(w.ctx, at, metav1.DeleteOptions{}, w.caller)
		return err
	}}} {
		attempts := 0
		ctx, cancel := context.WithCancel(context.Background())
		w.beforeCommit = func([]storage.Write) {
			if attempts++; attempts == 9 {
				cancel()
				return
			}
			for _, key := range []string{cronTabKey, "/registry/namespaces/default", "/registry/stable.example.com/crontabs/default/a"} {
				rec := w.Store.Head().Get(key)
				if _, err := w.Store.Commit(context.Background(), []storage.Write{{Key: key, Value: rec.Value, Expected: rec.Modified}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.ctx = ctx
		w.refused(v.do(w, w.cron("a")), 504, metav1.StatusReasonTimeout, "request did not complete within the allotted timeout")
		equal(t, fmt.Sprint(i, " ", v.name), attempts, 9)
	}
}
