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

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

// crdVersion is a version of the CronTab CRD. The CRD has the conversion strategy None.
type crdVersion struct {
	name   string
	served bool
	stored bool
	schema string // "" means cronTabSchema
}

// writeVersions writes the CronTab CRD with the given versions.
func (f *fixture) writeVersions(versions ...crdVersion) {
	f.Helper()
	var all []string
	for _, v := range versions {
		if v.schema == "" {
			v.schema = cronTabSchema
		}
		all = append(all, fmt.Sprintf(cronTabVersion, v.name, v.served, v.stored, v.schema))
	}
	f.writeCRD(fmt.Sprintf(cronTabCRD, strings.Join(all, ",")))
}

// cronAt returns the target of a CronTab at a version, or of all CronTabs if name is "".
func (f *fixture) cronAt(version, name string) verb.Target {
	f.Helper()
	t := f.target("stable.example.com", version, "crontabs", "default")
	t.Name = name
	return t
}

// storedVersion returns the version at which a CronTab is stored. It reads the store directly.
func (f *fixture) storedVersion(name string) string {
	f.Helper()
	rec := f.Store.Head().Get("/registry/stable.example.com/crontabs/default/" + name)
	if rec == nil {
		f.Fatalf("%s is not stored", name)
	}
	apiVersion, _ := object.Field(rec.Value, "apiVersion")
	return strings.Trim(strings.TrimPrefix(string(apiVersion), `"stable.example.com/`), `"`)
}

const cronTabManifest = `{"metadata":{"name":%q},"spec":{"cronSpec":"* * * * *","image":"i"}}`

// TestStoredVersionWalkThrough checks the example in the Kubernetes documentation that shows how stored versions
// change (VER-039, VER-043, VER-044, VER-045, VER-051, VER-052, VER-053).
func TestStoredVersionWalkThrough(t *testing.T) {
	f := newFixture(t)
	f.writeVersions(crdVersion{name: "v1beta1", served: true, stored: true})
	f.mustCreate(f.cronAt("v1beta1", ""), fmt.Sprintf(cronTabManifest, "a"))
	equal(t, "version of A", f.storedVersion("a"), "v1beta1")
	before := f.Store.Head().Get("/registry/stable.example.com/crontabs/default/a")

	f.writeVersions(crdVersion{name: "v1beta1", served: true}, crdVersion{name: "v1", served: true, stored: true})
	equal(t, "version of A after the change of the storage version", f.storedVersion("a"), "v1beta1")
	old, now := f.get(f.cronAt("v1beta1", "a")), f.get(f.cronAt("v1", "a"))
	equal(t, "apiVersions", []any{old["apiVersion"], now["apiVersion"]},
		[]any{"stable.example.com/v1beta1", "stable.example.com/v1"})
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp"} {
		equal(t, field, object.Metadata(now)[field], object.Metadata(old)[field])
	}
	old["apiVersion"] = now["apiVersion"]
	equal(t, "A read at both versions", now, old)
	if after := f.Store.Head().Get("/registry/stable.example.com/crontabs/default/a"); after != before {
		t.Error("a read has changed the stored object")
	}
	f.mustCreate(f.cronAt("v1beta1", ""), fmt.Sprintf(cronTabManifest, "b"))
	equal(t, "versions of A and B", []string{f.storedVersion("a"), f.storedVersion("b")}, []string{"v1beta1", "v1"})

	f.mustEdit(f.cronAt("v1beta1", "a"), func(t object.Tree) { set(t, "spec.image", "j") })
	equal(t, "version of A after an update", f.storedVersion("a"), "v1")
	equal(t, "image", valueAt(f.get(f.cronAt("v1", "a")), "spec.image"), "j")
}

// TestNoOpWriteMovesToStorageVersion checks writes that change nothing after the storage version has changed. With
// every verb, the first write stores the object at the new storage version, and the second changes nothing. The
// names of both versions have the same length, and so do both encodings (VER-054, VER-051).
func TestNoOpWriteMovesToStorageVersion(t *testing.T) {
	for name, write := range map[string]func(*fixture, verb.Target){
		"update":       func(f *fixture, at verb.Target) { f.mustEdit(at, func(object.Tree) {}) },
		"merge patch":  func(f *fixture, at verb.Target) { f.mustPatch(at, mergePatch, `{}`) },
		"JSON patch":   func(f *fixture, at verb.Target) { f.mustPatch(at, types.JSONPatchType, `[]`) },
		"status patch": func(f *fixture, at verb.Target) { f.mustPatch(subresource(at, "status"), mergePatch, `{}`) },
		"apply": func(f *fixture, at verb.Target) {
			f.mustPatch(at, types.ApplyPatchType, `{"apiVersion":"`+at.Version.APIVersion+
				`","kind":"CronTab","metadata":{"name":"a"},"spec":{"image":"i","cronSpec":"* * * * *"}}`)
		},
	} {
		for _, version := range []string{"v1", "v2"} {
			f := newFixture(t)
			f.writeVersions(crdVersion{name: "v1", served: true, stored: true}, crdVersion{name: "v2", served: true})
			f.mustPatch(f.cronAt(version, "a"), types.ApplyPatchType,
				`{"apiVersion":"stable.example.com/`+version+
					`","kind":"CronTab","metadata":{"name":"a"},"spec":{"image":"i","cronSpec":"* * * * *"}}`)
			first := f.get(f.cronAt("v2", "a"))
			write(f, f.cronAt(version, "a"))
			again := f.get(f.cronAt("v2", "a"))
			equal(t, name+": resourceVersion without changes", object.ResourceVersion(again),
				object.ResourceVersion(first))

			f.writeVersions(crdVersion{name: "v1", served: true}, crdVersion{name: "v2", served: true, stored: true})
			write(f, f.cronAt(version, "a"))
			equal(t, name+" at "+version+": stored version", f.storedVersion("a"), "v2")
			moved := f.get(f.cronAt("v2", "a"))
			if object.ResourceVersion(moved) == object.ResourceVersion(first) {
				t.Errorf("%s at %s: got the same resourceVersion, want a new one", name, version)
			}
			equal(t, name+": generation", object.Generation(moved), object.Generation(first))
			write(f, f.cronAt(version, "a"))
			equal(t, name+": resourceVersion after a second write", object.ResourceVersion(f.get(f.cronAt("v2", "a"))),
				object.ResourceVersion(moved))
		}
	}
}

// TestStoredAtUnservedVersion checks objects that are stored at a version that is no longer served. They can be
// read, listed and deleted at the other versions. Reads omit fields that the schema does not declare, but these
// fields stay stored (VER-046, VER-008, VER-039, VER-048, VER-049).
func TestStoredAtUnservedVersion(t *testing.T) {
	f := newFixture(t)
	f.writeVersions(crdVersion{name: "v1alpha1", served: true, stored: true})
	f.mustCreate(f.cronAt("v1alpha1", ""), `{"metadata":{"name":"a"},"spec":{"image":"i","color":"red"}}`)
	f.writeVersions(crdVersion{name: "v1alpha1", served: true}, crdVersion{name: "v1beta1", served: true, stored: true})
	f.mustCreate(f.cronAt("v1beta1", ""), `{"metadata":{"name":"b"},"spec":{"image":"i","color":"red"}}`)
	narrow := strings.Replace(cronTabSchema, `"color":{"type":"string"},`, "", 1)
	f.writeVersions(crdVersion{name: "v1alpha1"}, crdVersion{name: "v1beta1"},
		crdVersion{name: "v1", served: true, stored: true, schema: narrow})
	f.mustCreate(f.cronAt("v1", ""), `{"metadata":{"name":"c"},"spec":{"image":"i"}}`)
	equal(t, "stored versions", []string{f.storedVersion("a"), f.storedVersion("b"), f.storedVersion("c")},
		[]string{"v1alpha1", "v1beta1", "v1"})
	for _, o := range f.list(f.cronAt("v1", ""), read.ListOptions{}).Items {
		tree := treeOf(t, o)
		equal(t, "read", []any{tree["apiVersion"], tree["spec"]},
			[]any{"stable.example.com/v1", map[string]any{"image": "i"}})
	}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		if v := f.Live.Load().Find("stable.example.com", version, "crontabs"); v != nil {
			t.Errorf("%s is still served", version)
		}
	}
	rec := f.Store.Head().Get("/registry/stable.example.com/crontabs/default/a")
	if !strings.Contains(string(rec.Value), `"color":"red"`) {
		t.Errorf("a read has changed the stored object: %s", rec.Value)
	}
	// v1alpha1 is served again.
	f.writeVersions(crdVersion{name: "v1alpha1", served: true}, crdVersion{name: "v1beta1"},
		crdVersion{name: "v1", served: true, stored: true, schema: narrow})
	equal(t, "color at v1alpha1", valueAt(f.get(f.cronAt("v1alpha1", "a")), "spec.color"), "red")
	// Every object can be deleted at any version.
	f.delete(f.cronAt("v1", "a"), metav1.DeleteOptions{})
	f.delete(f.cronAt("v1alpha1", "b"), metav1.DeleteOptions{})
	equal(t, "remaining objects", len(f.list(f.cronAt("v1", ""), read.ListOptions{}).Items), 1)
}

// TestOwnersAcrossVersions checks that each entry of managedFields keeps its version. An apply respects fields that
// are owned at another version (VER-062).
func TestOwnersAcrossVersions(t *testing.T) {
	f := newFixture(t)
	f.writeVersions(crdVersion{name: "v1beta1", served: true, stored: true}, crdVersion{name: "v1", served: true})
	apply := func(version, manager, spec string, force bool) (record.Object, error) {
		c := f.caller
		c.FieldManager = manager
		o, _, err := f.Patch(f.ctx, f.cronAt(version, "a"), verb.Patch{Type: types.ApplyPatchType, Force: force,
			Data: []byte(`{"apiVersion":"stable.example.com/` + version +
				`","kind":"CronTab","metadata":{"name":"a"},"spec":` + spec + `}`)}, c)
		return o, err
	}
	if _, err := apply("v1beta1", "old", `{"image":"i","replicas":1}`, false); err != nil {
		t.Fatal(err)
	}
	_, err := apply("v1", "new", `{"image":"j"}`, false)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, `conflict with "old": .spec.image`)
	if _, err := apply("v1", "new", `{"color":"red"}`, false); err != nil {
		t.Fatal(err)
	}
	f.writeVersions(crdVersion{name: "v1beta1", served: true}, crdVersion{name: "v1", served: true, stored: true})
	o, err := apply("v1beta1", "old", `{"image":"i"}`, false)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "spec after an apply without replicas", treeOf(t, o)["spec"], map[string]any{"color": "red", "image": "i"})
	at := map[string]string{}
	for _, e := range managersOf(treeOf(t, o)) {
		at[e.Manager] = e.APIVersion
	}
	equal(t, "versions of the managers", at, map[string]string{"old": "stable.example.com/v1beta1",
		"new": "stable.example.com/v1"})
}

// TestWriteAsStored checks that a write with AsStored keeps the version at which the object is stored (VER-054).
func TestWriteAsStored(t *testing.T) {
	f := newFixture(t)
	f.writeVersions(crdVersion{name: "v1", served: true, stored: true}, crdVersion{name: "v2", served: true})
	f.mustCreate(f.cronAt("v1", ""), fmt.Sprintf(cronTabManifest, "a"))
	f.writeVersions(crdVersion{name: "v1", served: true}, crdVersion{name: "v2", served: true, stored: true})
	at := f.cronAt("v2", "a")
	at.AsStored = true
	f.mustPatch(at, mergePatch, `{"metadata":{"finalizers":["example.com/x"]}}`)
	equal(t, "stored version", f.storedVersion("a"), "v1")
	equal(t, "finalizers", len(object.Finalizers(f.get(f.cronAt("v2", "a")))), 1)
}

// TestManagedFieldsOfMismatchedObject checks that an object can be written at a version whose schema it violates,
// if the violating field is unchanged. Its managedFields then stay unchanged too, because upstream cannot compute
// them either (VER-064, CRD-057).
func TestManagedFieldsOfMismatchedObject(t *testing.T) {
	f := newFixture(t)
	numeric := strings.Replace(cronTabSchema, `"color":{"type":"string"}`, `"color":{"type":"integer"}`, 1)
	f.writeVersions(crdVersion{name: "v1", served: true, stored: true},
		crdVersion{name: "v2", served: true, schema: numeric})
	f.mustCreate(f.cronAt("v1", ""), `{"metadata":{"name":"a"},"spec":{"color":"red","image":"i"}}`)
	owners := valueAt(f.get(f.cronAt("v1", "a")), "metadata.managedFields")
	f.caller.FieldManager = "other"
	for i, write := range []func(verb.Target) error{
		func(at verb.Target) error { _, err := f.patch(at, mergePatch, `{"spec":{"replicas":1}}`); return err },
		func(at verb.Target) error {
			_, err := f.edit(at, func(o object.Tree) { set(o, "spec.replicas", int64(2)) })
			return err
		},
		func(at verb.Target) error {
			_, err := f.patch(subresource(at, "status"), mergePatch, `{"status":{"replicas":3}}`)
			return err
		},
	} {
		if err := write(f.cronAt("v2", "a")); err != nil {
			t.Fatal(i, err)
		}
		equal(t, fmt.Sprint("managedFields after write ", i),
			valueAt(f.get(f.cronAt("v1", "a")), "metadata.managedFields"), owners)
	}
	_, err := f.patch(f.cronAt("v2", "a"), applyPatch,
		`{"apiVersion":"stable.example.com/v2","kind":"CronTab","metadata":{"name":"a"},"spec":{"replicas":4}}`)
	f.expectStatus(err, 500, metav1.StatusReasonUnknown,
		"failed to create typed live object (default/a; stable.example.com/v2, Kind=CronTab): .spec.color: expected "+
			"numeric (int or float), got string")
	f.mustPatch(f.cronAt("v2", "a"), mergePatch, `{"spec":{"color":null}}`)
	equal(t, "managedFields after the write that fixes the field",
		valueAt(f.get(f.cronAt("v1", "a")), "metadata.managedFields"), owners)
	f.mustPatch(f.cronAt("v2", "a"), mergePatch, `{"spec":{"replicas":5}}`)
	if got := valueAt(f.get(f.cronAt("v2", "a")), "metadata.managedFields").([]any); len(got) != 2 {
		t.Errorf("got managedFields %v after the object fits the schema, want two entries", got)
	}
}

// TestWatchAcrossVersions checks that a watch sends all objects at its version, regardless of the versions at which
// they are stored. When the watch's version is no longer served, the watch ends, and no new watch can start
// (VER-063).
func TestWatchAcrossVersions(t *testing.T) {
	f := newFixture(t)
	f.writeVersions(crdVersion{name: "v1beta1", served: true, stored: true}, crdVersion{name: "v1", served: true})
	watch := f.watch(f.cronAt("v1beta1", ""), read.ListOptions{ResourceVersion: f.head()})
	f.mustCreate(f.cronAt("v1beta1", ""), fmt.Sprintf(cronTabManifest, "a"))
	f.mustCreate(f.cronAt("v1", ""), fmt.Sprintf(cronTabManifest, "b"))
	for _, name := range []string{"a", "b"} {
		ev, err := watch.next()
		if err != nil {
			t.Fatal(err)
		}
		tree := treeOf(t, ev.Object)
		equal(t, "watched", []any{object.Name(tree), tree["apiVersion"]}, []any{name, "stable.example.com/v1beta1"})
	}
	target := f.cronAt("v1beta1", "")
	f.writeVersions(crdVersion{name: "v1beta1"}, crdVersion{name: "v1", served: true, stored: true})
	if ev, err := watch.next(); err == nil {
		t.Errorf("got %v, want the end of the watch", ev)
	}
	_, err := f.Watch(f.ctx, target, read.ListOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("new watch: got %v, want NotFound", err)
	}
}

// TestVersionsChangeUnderLoad checks that writers at two versions lose no write while the storage version, the
// served versions and the schema change. Every object is stored at one of the storage versions (VER-004, VER-059,
// VER-064, VER-043).
func TestVersionsChangeUnderLoad(t *testing.T) {
	f := newFixture(t)
	f.writeVersions(crdVersion{name: "v1beta1", served: true, stored: true}, crdVersion{name: "v1", served: true})
	old, now := f.cronAt("v1beta1", ""), f.cronAt("v1", "")
	var writers sync.WaitGroup
	var done atomic.Bool
	const each = 60
	for n := range 4 {
		writers.Go(func() {
			at := []verb.Target{old, now}[n%2]
			c := f.caller
			c.Warn = nil
			for i := range each {
				name := fmt.Sprintf("c%d-%d", n, i)
				body := verb.Body{Tree: decode(t,
					fmt.Sprintf(`{"apiVersion":%q,"kind":"CronTab","metadata":{"name":%q},"spec":{"replicas":0}}`,
						at.Version.APIVersion, name))}
				if _, err := f.Create(f.ctx, at, body, c); err != nil {
					t.Errorf("create %s: %v", name, err)
					continue
				}
				at.Name = name
				p := verb.Patch{Type: mergePatch, Data: []byte(`{"spec":{"replicas":1}}`)}
				if _, _, err := f.Patch(f.ctx, at, p,
					c); err != nil {
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
			f.writeVersions(crdVersion{name: "v1beta1", served: true, stored: first,
				schema: []string{cronTabSchema, wider}[i%3/2]}, crdVersion{name: "v1", served: true, stored: !first})
		}
	})
	writers.Wait()
	done.Store(true)
	toggling.Wait()
	f.writeVersions(crdVersion{name: "v1beta1", served: true}, crdVersion{name: "v1", served: true, stored: true})
	for _, version := range []string{"v1beta1", "v1"} {
		items := f.list(f.cronAt(version, ""), read.ListOptions{}).Items
		equal(t, "objects at "+version, len(items), 4*each)
		for _, o := range items {
			tree := treeOf(t, o)
			equal(t, "object", []any{tree["apiVersion"], valueAt(tree, "spec.replicas")},
				[]any{"stable.example.com/" + version, 1})
			if at := f.storedVersion(object.Name(tree)); !slices.Contains([]string{"v1beta1", "v1"}, at) {
				t.Errorf("got stored version %q", at)
			}
		}
	}
}

// TestWriteAtRemovedVersion checks that a write returns NotFound if its version is removed during the write
// (VER-064).
func TestWriteAtRemovedVersion(t *testing.T) {
	f := newFixture(t)
	f.writeVersions(crdVersion{name: "v1beta1", served: true, stored: true}, crdVersion{name: "v1", served: true})
	at := f.cronAt("v1beta1", "")
	f.writeVersions(crdVersion{name: "v1beta1", stored: true}, crdVersion{name: "v1", served: true})
	_, err := f.create(at, fmt.Sprintf(cronTabManifest, "late"))
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Code != 404 {
		t.Errorf("got %v, want NotFound", err)
	}
}
