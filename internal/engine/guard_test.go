package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// race counts the commits of a write that conflicts with another write.
type race struct {
	*fixture
	attempts int // number of commits that were tried
}

// raceBeforeCommit calls the function other before the first commit of the next write, after the write's
// evaluation. The argument of other is that write.
func (f *fixture) raceBeforeCommit(other func(write storage.Write)) *race {
	r := &race{fixture: f}
	f.beforeCommit = func(writes []storage.Write) {
		if r.attempts++; r.attempts > 1 {
			return
		}
		hook := f.beforeCommit
		f.beforeCommit = nil // the other write needs no hook
		other(writes[0])
		f.beforeCommit = hook
	}
	return r
}

// raceDuringEvaluation calls the function other during the evaluation of the next write. At that point, a built-in
// kind has read other objects once, and is about to read them again to compute its guards. The result counts the
// commits of the write.
func (f *fixture) raceDuringEvaluation(other func()) *race {
	r := &race{fixture: f}
	f.beforeCommit = func([]storage.Write) { r.attempts++ }
	reads := 0
	f.onRead = func() {
		if reads++; reads == 2 {
			hook := f.beforeCommit
			f.beforeCommit, f.onRead = nil, nil
			other()
			f.beforeCommit = hook
		}
	}
	return r
}

// expectAttempts checks the number of commits that were tried.
func (r *race) expectAttempts(attempts int) {
	r.Helper()
	equal(r, "commits tried", r.attempts, attempts)
}

// namespace returns the target of a namespace, or of all namespaces if name is "".
func (f *fixture) namespace(name string) verb.Target {
	f.Helper()
	t := f.target("", "v1", "namespaces", "")
	t.Name = name
	return t
}

// countStored returns the number of stored CronTabs.
func (f *fixture) countStored() int {
	return f.Store.Head().Count("/registry/stable.example.com/crontabs/", "")
}

// removeKey deletes a key from the store, bypassing the engine.
func (f *fixture) removeKey(key string) {
	f.Helper()
	rec := f.Store.Head().Get(key)
	if rec == nil {
		f.Fatalf("%s is not stored", key)
	}
	f.commit(storage.Write{Key: key, Expected: rec.Modified})
}

// verbCase is a write of the CronTab "a", which has one replica and no image.
type verbCase struct {
	name string
	do   func(f *fixture, at verb.Target) error
	path string // the field that the verb sets to 7
}

// patchVerb returns a verb function that sends a patch. It replaces the word VERSION in data by the apiVersion of
// the target.
func patchVerb(kind types.PatchType, sub, data string) func(*fixture, verb.Target) error {
	return func(f *fixture, at verb.Target) error {
		data := strings.Replace(data, "VERSION", at.Version.APIVersion, 1)
		_, err := f.patch(subresource(at, sub), kind, data)
		return err
	}
}

// retriedVerbs change the current object. They are retried after every conflict.
var retriedVerbs = []verbCase{
	{"merge patch", patchVerb(mergePatch, "", `{"spec":{"any":{"n":7}}}`), "spec.any.n"},
	{"JSON patch", patchVerb(jsonPatch, "", `[{"op":"add","path":"/spec/any","value":{"n":7}}]`), "spec.any.n"},
	{"apply", patchVerb(applyPatch, "", `{"apiVersion":"VERSION","kind":"CronTab","metadata":{"name":"a"},`+
		`"spec":{"any":{"n":7}}}`), "spec.any.n"},
	{"status patch", patchVerb(mergePatch, "status", `{"status":{"replicas":7}}`), "status.replicas"},
	{"status apply", patchVerb(applyPatch, "status",
		`{"apiVersion":"VERSION","kind":"CronTab","metadata":{"name":"a"},"status":{"replicas":7}}`),
		"status.replicas"},
	{"scale update", func(f *fixture, at verb.Target) error {
		_, err := f.update(subresource(at, "scale"), `{"metadata":{"name":"a"},"spec":{"replicas":7}}`)
		return err
	}, "spec.replicas"},
	{"scale patch", patchVerb(mergePatch, "scale", `{"spec":{"replicas":7}}`), "spec.replicas"},
	{"scale apply", func(f *fixture, at verb.Target) error {
		_, _, err := f.Patch(f.ctx, subresource(at, "scale"), verb.Patch{Type: applyPatch, Force: true,
			Data: []byte(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"a"},` +
				`"spec":{"replicas":7}}`)}, f.caller)
		return err
	}, "spec.replicas"},
}

// updateVerbs replace the object that the caller has read.
var updateVerbs = []verbCase{
	{"update", func(f *fixture, at verb.Target) error {
		_, err := f.edit(at, func(o object.Tree) { set(o, "spec.any", object.Tree{"n": int64(7)}) })
		return err
	}, "spec.any.n"},
	{"status update", func(f *fixture, at verb.Target) error {
		_, err := f.edit(subresource(at, "status"), func(o object.Tree) { set(o, "status.replicas", int64(7)) })
		return err
	}, "status.replicas"},
}

// createVerbs create the CronTab "a".
var createVerbs = []verbCase{
	{"create", func(f *fixture, at verb.Target) error {
		at.Name = ""
		_, err := f.create(at, `{"metadata":{"name":"a"},"spec":{"any":{"n":7}}}`)
		return err
	}, "spec.any.n"},
	retriedVerbs[2],
}

// newRaceFixture returns a fixture. It contains the CronTab "a" if exists is true.
func newRaceFixture(t *testing.T, exists bool) *fixture {
	f := newFixture(t)
	if exists {
		f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":1}}`)
	}
	return f
}

// TestNamespaceTerminationConflict checks a create in a namespace that becomes terminating or is deleted before the
// commit. The create fails (CRD-031).
func TestNamespaceTerminationConflict(t *testing.T) {
	for _, v := range createVerbs {
		t.Run(v.name, func(t *testing.T) {
			f := newRaceFixture(t, false)
			f.mustCreate(f.namespace(""), `{"metadata":{"name":"n"}}`)
			at := f.cron("a")
			at.Namespace = "n"
			r := f.raceBeforeCommit(func(storage.Write) { f.delete(f.namespace("n"), metav1.DeleteOptions{}) })
			f.expectStatus(v.do(f, at), 403, metav1.StatusReasonForbidden,
				`"a" is forbidden: unable to create new content in namespace n because it is being terminated`)
			r.expectAttempts(1)
			f.raceBeforeCommit(func(storage.Write) { f.removeKey("/registry/namespaces/default") })
			f.expectStatus(v.do(f, f.cron("a")), 404, metav1.StatusReasonNotFound, `namespaces "default" not found`)
			equal(t, "stored", f.countStored(), 0)
		})
	}
}

// TestNamespaceChangeRetries checks that a create is retried if its namespace changes before the commit. The caller
// does not notice the retry (CRD-031).
func TestNamespaceChangeRetries(t *testing.T) {
	f := newFixture(t)
	r := f.raceBeforeCommit(func(storage.Write) {
		f.mustPatch(f.namespace("default"), mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	})
	created := treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"i"}}`))
	r.expectAttempts(2)
	equal(t, "created object", created, f.get(f.cron("a")))
	equal(t, "managers", len(managersOf(created)), 1)
}

// TestWarningsAreSentOnce checks that a write that is retried sends each warning once.
func TestWarningsAreSentOnce(t *testing.T) {
	for name, write := range map[string]func(f *fixture) *race{
		"guard": func(f *fixture) *race {
			r := f.raceBeforeCommit(func(storage.Write) {
				f.mustPatch(f.namespace("default"), mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
			})
			f.mustCreate(f.cron(""), `{"metadata":{"name":"b","finalizers":["short"]}}`)
			return r
		},
		"generated name": func(f *fixture) *race {
			r := f.raceBeforeCommit(func(write storage.Write) {
				f.commit(storage.Write{Key: write.Key, Value: object.Pack(object.Tree{}, 0).JSON()})
			})
			f.mustCreate(f.cron(""), `{"metadata":{"generateName":"b-","finalizers":["short"]}}`)
			return r
		},
		"conflict": func(f *fixture) *race {
			r := f.raceBeforeCommit(f.annotate)
			f.mustPatch(f.cron("a"), mergePatch, `{"metadata":{"finalizers":["short"]}}`)
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newRaceFixture(t, true)
			write(f).expectAttempts(2)
			equal(t, "warnings", f.warnings,
				[]string{`metadata.finalizers: "short": prefer a domain-qualified finalizer name to avoid ` +
					`accidental conflicts with other finalizer writers`})
		})
	}
}

// TestCRDTerminationConflict checks writes whose CRD changes before their commit. If the CRD is terminating, no
// object can be created. If it is deleted, no object can be written (CRD-044, CRD-029).
func TestCRDTerminationConflict(t *testing.T) {
	manifest := cronTabs(cronTabSchema, cronTabSchema)
	for _, v := range createVerbs {
		t.Run("terminating/"+v.name, func(t *testing.T) {
			f := newRaceFixture(t, false)
			r := f.raceBeforeCommit(func(storage.Write) {
				f.writeCRD(strings.Replace(manifest, `"type":"NamesAccepted"`,
					`"type":"Terminating","status":"True"},{"type":"NamesAccepted"`, 1))
			})
			f.expectStatus(v.do(f, f.cron("a")), 403, metav1.StatusReasonForbidden,
				`"a" is forbidden: create not allowed while custom resource definition is terminating`)
			r.expectAttempts(1)
			equal(t, "stored", f.countStored(), 0)
		})
	}
	for i, v := range slices.Concat(createVerbs, retriedVerbs, updateVerbs) {
		t.Run("deleted/"+v.name, func(t *testing.T) {
			f := newRaceFixture(t, i >= len(createVerbs))
			head := int64(0)
			r := f.raceBeforeCommit(func(storage.Write) { f.removeKey(cronTabKey); head = f.Store.Head().Revision() })
			f.expectStatus(v.do(f, f.cron("a")), 404, metav1.StatusReasonNotFound,
				"the server could not find the requested resource")
			r.expectAttempts(1)
			equal(t, "changes", len(f.eventsAfter(head)), 0)
		})
	}
}

// TestCRDChangeRetries checks that a write uses the CRD's schema and storage version at the time of the commit
// (VER-059, VER-064).
func TestCRDChangeRetries(t *testing.T) {
	strict := strings.Replace(cronTabSchema, `"any":{"type":"object",`, `"any":{"type":"object","maxProperties":0,`, 1)
	strict = strings.Replace(strict, `"status":{"type":"object","properties":{"replicas":{"type":"integer"`,
		`"status":{"type":"object","properties":{"replicas":{"type":"integer","maximum":6`, 1)
	strict = strings.Replace(strict, `"image":{"type":"string"},"replicas":{"type":"integer"`,
		`"image":{"type":"string"},"replicas":{"type":"integer","maximum":6`, 1)
	for i, v := range slices.Concat(createVerbs, retriedVerbs, updateVerbs) {
		t.Run("schema/"+v.name, func(t *testing.T) {
			f := newRaceFixture(t, i >= len(createVerbs))
			r := f.raceBeforeCommit(func(storage.Write) { f.writeCRD(cronTabs(strict, strict)) })
			f.expectStatus(v.do(f, f.cron("a")), 422, metav1.StatusReasonInvalid,
				"is invalid: "+strings.TrimSuffix(v.path, ".n")+": ")
			r.expectAttempts(1)
		})
		for from, to := range map[string]string{"v1": "v2", "v2": "v1"} {
			t.Run("storage version "+to+"/"+v.name, func(t *testing.T) {
				f := newRaceFixture(t, i >= len(createVerbs))
				stored := func(at string) {
					f.writeVersions(crdVersion{name: "v1", served: true, stored: at == "v1"},
						crdVersion{name: "v2", served: true, stored: at == "v2"})
				}
				stored(from)
				r := f.raceBeforeCommit(func(storage.Write) { stored(to) })
				if err := v.do(f, f.cron("a")); err != nil {
					t.Fatal(err)
				}
				r.expectAttempts(2)
				equal(t, "stored at", f.storedVersion("a"), to)
				equal(t, v.path, valueAt(f.get(f.cron("a")), v.path), 7)
			})
		}
	}
}

// TestSubresourceRemoved checks that a write of a subresource fails if the version loses the subresource before the
// commit (SUB-011).
func TestSubresourceRemoved(t *testing.T) {
	for _, v := range slices.Concat(retriedVerbs, updateVerbs) {
		if v.path == "spec.any.n" {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			f := newRaceFixture(t, true)
			r := f.raceBeforeCommit(func(storage.Write) {
				manifest := strings.ReplaceAll(cronTabs(cronTabSchema, cronTabSchema),
					`"subresources":{"status":{},"scale":{`, `"subresources":{},"other":{"scale":{`)
				f.writeCRD(manifest)
			})
			f.expectStatus(v.do(f, f.cron("a")), 404, metav1.StatusReasonNotFound,
				"the server could not find the requested resource")
			r.expectAttempts(1)
			equal(t, "replicas", valueAt(f.get(f.cron("a")), "spec.replicas"), 1)
		})
	}
}

// TestRetriesEndWithRequest checks that a write whose guards always fail is retried until its request ends.
func TestRetriesEndWithRequest(t *testing.T) {
	f := newRaceFixture(t, true)
	for i, v := range []verbCase{{name: "create", do: func(f *fixture, at verb.Target) error {
		at.Name = ""
		_, err := f.create(at, `{"metadata":{"name":"b"}}`)
		return err
	}}, retriedVerbs[0], {name: "delete", do: func(f *fixture, at verb.Target) error {
		_, _, err := f.Delete(f.ctx, at, metav1.DeleteOptions{}, f.caller)
		return err
	}}} {
		attempts := 0
		ctx, cancel := context.WithCancel(context.Background())
		f.beforeCommit = func([]storage.Write) {
			if attempts++; attempts == 9 {
				cancel()
				return
			}
			for _, key := range []string{cronTabKey, "/registry/namespaces/default",
				"/registry/stable.example.com/crontabs/default/a"} {
				rec := f.Store.Head().Get(key)
				if _, err := f.store.Commit(context.Background(),
					[]storage.Write{{Key: key, Value: rec.Value, Expected: rec.Modified}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		f.ctx = ctx
		f.expectStatus(v.do(f, f.cron("a")), 504, metav1.StatusReasonTimeout,
			"request did not complete within the allotted timeout")
		equal(t, fmt.Sprint(i, " ", v.name), attempts, 9)
	}
}
