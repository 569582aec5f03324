package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/object"
)

// has is one version of the kind in these tests, all of strategy None.
type has struct {
	name   string
	served bool
	stored bool
	schema string // "": cronTabSchema
}

// versioned writes the CRD with these versions.
func (w *world) versioned(versions ...has) {
	w.Helper()
	var all []string
	for _, v := range versions {
		if v.schema == "" {
			v.schema = cronTabSchema
		}
		all = append(all, fmt.Sprintf(cronTabVersion, v.name, v.served, v.stored, v.schema))
	}
	w.writeCRD(fmt.Sprintf(cronTabCRD, strings.Join(all, ",")))
}

// crontab addresses one CronTab at a version.
func (w *world) crontab(version, name string) Target {
	w.Helper()
	t := w.at("stable.example.com", version, "crontabs", "default")
	t.Name = name
	return t
}

// storedAt is the version that an object is stored at, read from the log's tree and not through any verb.
func (w *world) storedAt(name string) string {
	w.Helper()
	rec := w.Store.Head().Get("/registry/stable.example.com/crontabs/default/" + name)
	if rec == nil {
		w.Fatalf("%s is not stored", name)
	}
	apiVersion, _ := object.Field(rec.Value, "apiVersion")
	return strings.Trim(strings.TrimPrefix(string(apiVersion), `"stable.example.com/`), `"`)
}

const aCron = `{"metadata":{"name":%q},"spec":{"cronSpec":"* * * * *","image":"i"}}`

// VER-039 VER-043 VER-044 VER-045 VER-051 VER-052 VER-053: the documents' walk-through.
func TestStoredVersionWalkThrough(t *testing.T) {
	w := newWorld(t)
	w.versioned(has{name: "v1beta1", served: true, stored: true})
	w.mustCreate(w.crontab("v1beta1", ""), fmt.Sprintf(aCron, "a"))
	equal(t, "A is stored at", w.storedAt("a"), "v1beta1")
	before := w.Store.Head().Get("/registry/stable.example.com/crontabs/default/a")

	w.versioned(has{name: "v1beta1", served: true}, has{name: "v1", served: true, stored: true})
	equal(t, "A is stored, after the change of the storage version, at", w.storedAt("a"), "v1beta1")
	old, now := w.get(w.crontab("v1beta1", "a")), w.get(w.crontab("v1", "a"))
	equal(t, "apiVersions", []any{old["apiVersion"], now["apiVersion"]}, []any{"stable.example.com/v1beta1", "stable.example.com/v1"})
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp"} {
		equal(t, field, object.Metadata(now)[field], object.Metadata(old)[field])
	}
	old["apiVersion"] = now["apiVersion"]
	equal(t, "A read at both versions", now, old)
	if after := w.Store.Head().Get("/registry/stable.example.com/crontabs/default/a"); after != before {
		t.Error("reading has written")
	}
	w.mustCreate(w.crontab("v1beta1", ""), fmt.Sprintf(aCron, "b"))
	equal(t, "A and B are stored at", []string{w.storedAt("a"), w.storedAt("b")}, []string{"v1beta1", "v1"})

	w.mustEdit(w.crontab("v1beta1", "a"), func(t object.Tree) { set(t, "spec.image", "j") })
	equal(t, "A is stored, once updated, at", w.storedAt("a"), "v1")
	equal(t, "image", valueAt(w.get(w.crontab("v1", "a")), "spec.image"), "j")
}

// VER-054 VER-051: a write that changes nothing moves an object that is stored at an older version, with every verb that writes, and then no more.
func TestNoOpWriteMovesToStorageVersion(t *testing.T) { // the names are of one length: so are the bytes
	for name, write := range map[string]func(*world, Target){
		"update":       func(w *world, at Target) { w.mustEdit(at, func(object.Tree) {}) },
		"merge patch":  func(w *world, at Target) { w.mustPatch(at, merging, `{}`) },
		"JSON patch":   func(w *world, at Target) { w.mustPatch(at, types.JSONPatchType, `[]`) },
		"status patch": func(w *world, at Target) { w.mustPatch(at.sub("status"), merging, `{}`) },
		"apply": func(w *world, at Target) {
			w.mustPatch(at, types.ApplyPatchType, `{"apiVersion":"`+at.Version.APIVersion+`","kind":"CronTab","metadata":{"name":"a"},"spec":{"image":"i","cronSpec":"* * * * *"}}`)
		},
	} {
		for _, version := range []string{"v1", "v2"} {
			w := newWorld(t)
			w.versioned(has{name: "v1", served: true, stored: true}, has{name: "v2", served: true})
			w.mustPatch(w.crontab(version, "a"), types.ApplyPatchType, `{"apiVersion":"stable.example.com/`+version+`","kind":"CronTab","metadata":{"name":"a"},"spec":{"image":"i","cronSpec":"* * * * *"}}`)
			first := w.get(w.crontab("v2", "a"))
			write(w, w.crontab(version, "a"))
			again := w.get(w.crontab("v2", "a"))
			equal(t, name+": what nothing changes is not written", object.ResourceVersion(again), object.ResourceVersion(first))

			w.versioned(has{name: "v1", served: true}, has{name: "v2", served: true, stored: true})
			write(w, w.crontab(version, "a"))
			equal(t, name+" at "+version+": stored at", w.storedAt("a"), "v2")
			moved := w.get(w.crontab("v2", "a"))
			if object.ResourceVersion(moved) == object.ResourceVersion(first) {
				t.Errorf("%s at %s: no new resourceVersion", name, version)
			}
			equal(t, name+": generation", object.Generation(moved), object.Generation(first))
			write(w, w.crontab(version, "a"))
			equal(t, name+": once moved", object.ResourceVersion(w.get(w.crontab("v2", "a"))), object.ResourceVersion(moved))
		}
	}
}

// VER-046 VER-008 VER-039 VER-048 VER-049: objects stay stored at versions that are no longer served, and are read, listed and
// watched at the others; what the schema there does not know is left out, in what is read alone.
func TestStoredAtUnservedVersion(t *testing.T) {
	w := newWorld(t)
	w.versioned(has{name: "v1alpha1", served: true, stored: true})
	w.mustCreate(w.crontab("v1alpha1", ""), `{"metadata":{"name":"a"},"spec":{"image":"i","color":"red"}}`)
	w.versioned(has{name: "v1alpha1", served: true}, has{name: "v1beta1", served: true, stored: true})
	w.mustCreate(w.crontab("v1beta1", ""), `{"metadata":{"name":"b"},"spec":{"image":"i","color":"red"}}`)
	narrow := strings.Replace(cronTabSchema, `"color":{"type":"string"},`, "", 1)
	w.versioned(has{name: "v1alpha1"}, has{name: "v1beta1"}, has{name: "v1", served: true, stored: true, schema: narrow})
	w.mustCreate(w.crontab("v1", ""), `{"metadata":{"name":"c"},"spec":{"image":"i"}}`)
	equal(t, "stored at", []string{w.storedAt("a"), w.storedAt("b"), w.storedAt("c")}, []string{"v1alpha1", "v1beta1", "v1"})
	for _, o := range w.list(w.crontab("v1", ""), ListOptions{}).Items {
		tree := treeOf(t, o)
		equal(t, "read", []any{tree["apiVersion"], tree["spec"]}, []any{"stable.example.com/v1", map[string]any{"image": "i"}})
	}
	for _, gone := range []string{"v1alpha1", "v1beta1"} {
		if v := w.Live.Load().Find("stable.example.com", gone, "crontabs"); v != nil {
			t.Errorf("%s is served", gone)
		}
	}
	rec := w.Store.Head().Get("/registry/stable.example.com/crontabs/default/a")
	if !strings.Contains(string(rec.Value), `"color":"red"`) {
		t.Errorf("reading has changed what is stored: %s", rec.Value)
	}
	// back in service
	w.versioned(has{name: "v1alpha1", served: true}, has{name: "v1beta1"}, has{name: "v1", served: true, stored: true, schema: narrow})
	equal(t, "color at v1alpha1", valueAt(w.get(w.crontab("v1alpha1", "a")), "spec.color"), "red")
	// any of them can be removed
	w.delete(w.crontab("v1", "a"), metav1.DeleteOptions{})
	w.delete(w.crontab("v1alpha1", "b"), metav1.DeleteOptions{})
	equal(t, "left", len(w.list(w.crontab("v1", ""), ListOptions{}).Items), 1)
}

// VER-062: each entry of managedFields keeps its version, and an apply at one respects what is owned through another.
func TestOwnersAcrossVersions(t *testing.T) {
	w := newWorld(t)
	w.versioned(has{name: "v1beta1", served: true, stored: true}, has{name: "v1", served: true})
	apply := func(version, manager, spec string, force bool) (Object, error) {
		c := w.caller
		c.FieldManager = manager
		o, _, err := w.Patch(w.ctx, w.crontab(version, "a"), Patch{Type: types.ApplyPatchType, Force: force,
			Data: []byte(`{"apiVersion":"stable.example.com/` + version + `","kind":"CronTab","metadata":{"name":"a"},"spec":` + spec + `}`)}, c)
		return o, err
	}
	if _, err := apply("v1beta1", "old", `{"image":"i","replicas":1}`, false); err != nil {
		t.Fatal(err)
	}
	_, err := apply("v1", "new", `{"image":"j"}`, false)
	w.refused(err, 409, metav1.StatusReasonConflict, `conflict with "old": .spec.image`)
	if _, err := apply("v1", "new", `{"color":"red"}`, false); err != nil {
		t.Fatal(err)
	}
	w.versioned(has{name: "v1beta1", served: true}, has{name: "v1", served: true, stored: true})
	o, err := apply("v1beta1", "old", `{"image":"i"}`, false)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "after an apply that leaves out", treeOf(t, o)["spec"], map[string]any{"color": "red", "image": "i"})
	at := map[string]string{}
	for _, e := range managedFields(object.Metadata(treeOf(t, o))) {
		at[e.Manager] = e.APIVersion
	}
	equal(t, "entries", at, map[string]string{"old": "stable.example.com/v1beta1", "new": "stable.example.com/v1"})
}

// VER-054: the loops write an object at the version that it is stored at, and leave it there.
func TestWriteAsStored(t *testing.T) {
	w := newWorld(t)
	w.versioned(has{name: "v1", served: true, stored: true}, has{name: "v2", served: true})
	w.mustCreate(w.crontab("v1", ""), fmt.Sprintf(aCron, "a"))
	w.versioned(has{name: "v1", served: true}, has{name: "v2", served: true, stored: true})
	at := w.crontab("v2", "a")
	at.AsStored = true
	w.mustPatch(at, merging, `{"metadata":{"finalizers":["example.com/x"]}}`)
	equal(t, "stored at", w.storedAt("a"), "v1")
	equal(t, "finalizers", len(object.Finalizers(w.get(w.crontab("v2", "a")))), 1)
}

// VER-064 CRD-057: an object that does not fit the schema of the version it is written at, in a part that the write leaves alone, is
// written, and its owners stay as they were: upstream cannot say who owns what of it.
func TestOwnersOfMisfits(t *testing.T) {
	w := newWorld(t)
	numeric := strings.Replace(cronTabSchema, `"color":{"type":"string"}`, `"color":{"type":"integer"}`, 1)
	w.versioned(has{name: "v1", served: true, stored: true}, has{name: "v2", served: true, schema: numeric})
	w.mustCreate(w.crontab("v1", ""), `{"metadata":{"name":"a"},"spec":{"color":"red","image":"i"}}`)
	owners := valueAt(w.get(w.crontab("v1", "a")), "metadata.managedFields")
	w.caller.FieldManager = "other"
	for i, write := range []func(Target) error{
		func(at Target) error { _, err := w.patch(at, merging, `{"spec":{"replicas":1}}`); return err },
		func(at Target) error {
			_, err := w.edit(at, func(o object.Tree) { set(o, "spec.replicas", int64(2)) })
			return err
		},
		func(at Target) error {
			_, err := w.patch(at.sub("status"), merging, `{"status":{"replicas":3}}`)
			return err
		},
	} {
		if err := write(w.crontab("v2", "a")); err != nil {
			t.Fatal(i, err)
		}
		equal(t, fmt.Sprint("owners after write ", i), valueAt(w.get(w.crontab("v1", "a")), "metadata.managedFields"), owners)
	}
	_, err := w.patch(w.crontab("v2", "a"), applying, `{"apiVersion":"stable.example.com/v2","kind":"CronTab","metadata":{"name":"a"},"spec":{"replicas":4}}`)
	w.refused(err, 500, metav1.StatusReasonUnknown, "failed to create typed live object (default/a; stable.example.com/v2, Kind=CronTab): .spec.color: expected numeric (int or float), got string")
	w.mustPatch(w.crontab("v2", "a"), merging, `{"spec":{"color":null}}`)
	equal(t, "owners after the one that mends it", valueAt(w.get(w.crontab("v1", "a")), "metadata.managedFields"), owners)
	w.mustPatch(w.crontab("v2", "a"), merging, `{"spec":{"replicas":5}}`)
	if got := valueAt(w.get(w.crontab("v2", "a")), "metadata.managedFields").([]any); len(got) != 2 {
		t.Errorf("owners once it fits %v", got)
	}
}

// VER-063: a watch delivers all objects at its version, wherever they are stored, ends when its version is no longer served, and none can begin.
func TestWatchAcrossVersions(t *testing.T) {
	w := newWorld(t)
	w.versioned(has{name: "v1beta1", served: true, stored: true}, has{name: "v1", served: true})
	watch := w.watch(w.crontab("v1beta1", ""), ListOptions{ResourceVersion: w.head()})
	w.mustCreate(w.crontab("v1beta1", ""), fmt.Sprintf(aCron, "a"))
	w.mustCreate(w.crontab("v1", ""), fmt.Sprintf(aCron, "b"))
	for _, name := range []string{"a", "b"} {
		ev, err := watch.next()
		if err != nil {
			t.Fatal(err)
		}
		tree := treeOf(t, ev.Object)
		equal(t, "watched", []any{object.Name(tree), tree["apiVersion"]}, []any{name, "stable.example.com/v1beta1"})
	}
	target := w.crontab("v1beta1", "")
	w.versioned(has{name: "v1beta1"}, has{name: "v1", served: true, stored: true})
	if ev, err := watch.next(); err == nil {
		t.Errorf("goes on with %v", ev)
	}
	_, err := w.Watch(w.ctx, target, ListOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("a new watch: %v", err)
	}
}

// VER-004 VER-059 VER-064 VER-043: while the storage version, what is served and the schema change all the time, writers at both versions lose nothing, and
// every object ends at a version that was the storage version when it was written.
func TestVersionsChangeUnderLoad(t *testing.T) {
	w := newWorld(t)
	w.versioned(has{name: "v1beta1", served: true, stored: true}, has{name: "v1", served: true})
	old, now := w.crontab("v1beta1", ""), w.crontab("v1", "")
	var writers sync.WaitGroup
	var done atomic.Bool
	const each = 60
	for n := range 4 {
		writers.Go(func() {
			at := []Target{old, now}[n%2]
			c := w.caller
			c.Warn = nil
			for i := range each {
				name := fmt.Sprintf("c%d-%d", n, i)
				body := Body{Tree: decode(t, fmt.Sprintf(`{"apiVersion":%q,"kind":"CronTab","metadata":{"name":%q},"spec":{"replicas":0}}`, at.Version.APIVersion, name))}
				if _, err := w.Create(w.ctx, at, body, c); err != nil {
					t.Errorf("create %s: %v", name, err)
					continue
				}
				at.Name = name
				if _, _, err := w.Patch(w.ctx, at, Patch{Type: merging, Data: []byte(`{"spec":{"replicas":1}}`)}, c); err != nil {
					t.Errorf("patch %s: %v", name, err)
				}
				at.Name = ""
			}
		})
	}
	var toggling sync.WaitGroup
	toggling.Go(func() {
		wider := strings.Replace(cronTabSchema, `"color":`, `"extra":{"type":"string"},"color":`, 1)
		for i := 0; !done.Load(); i++ {
			first := i%2 == 0
			w.versioned(has{name: "v1beta1", served: true, stored: first, schema: []string{cronTabSchema, wider}[i%3/2]}, has{name: "v1", served: true, stored: !first})
		}
	})
	writers.Wait()
	done.Store(true)
	toggling.Wait()
	w.versioned(has{name: "v1beta1", served: true}, has{name: "v1", served: true, stored: true})
	for _, version := range []string{"v1beta1", "v1"} {
		items := w.list(w.crontab(version, ""), ListOptions{}).Items
		equal(t, "objects at "+version, len(items), 4*each)
		for _, o := range items {
			tree := treeOf(t, o)
			equal(t, "object", []any{tree["apiVersion"], valueAt(tree, "spec.replicas")}, []any{"stable.example.com/" + version, 1})
			if at := w.storedAt(object.Name(tree)); !slices.Contains([]string{"v1beta1", "v1"}, at) {
				t.Errorf("stored at %q", at)
			}
		}
	}
}

// VER-064: a write that began at a version and ends after that went out of service is refused as every other.
func TestWriteAtVersionThatWent(t *testing.T) {
	w := newWorld(t)
	w.versioned(has{name: "v1beta1", served: true, stored: true}, has{name: "v1", served: true})
	at := w.crontab("v1beta1", "")
	w.versioned(has{name: "v1beta1", stored: true}, has{name: "v1", served: true})
	_, err := w.create(at, fmt.Sprintf(aCron, "late"))
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Code != 404 {
		t.Errorf("%v", err)
	}
}
