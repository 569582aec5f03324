package controllers_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/testserver"
)

// versionModel holds a CRD whose versions change at random, and the expected state.
type versionModel struct {
	*testing.T
	*testClient
	random *rand.Rand
	writes int

	versions map[string]bool // versions of the CRD and whether they are served
	storage  string
	stored   []string          // expected status.storedVersions
	values   map[string]string // values of the objects by name
	storedAt map[string]string // version at which each object is stored
}

var allVersions = []string{"v1alpha1", "v1beta1", "v1"}

func (s *versionModel) client(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "widgets"}
}

func (s *versionModel) served() (all []string) {
	for _, v := range allVersions {
		if s.versions[v] {
			all = append(all, v)
		}
	}
	return all
}

func (s *versionModel) pick(from []string) string { return from[s.random.IntN(len(from))] }

// changeVersions gives the CRD random versions. The server must reject the change if it removes a version at which
// objects may be stored.
func (s *versionModel) changeVersions() {
	next := map[string]bool{s.pick(allVersions): true}
	for _, v := range allVersions {
		if s.random.IntN(4) > 0 {
			next[v] = next[v] || s.random.IntN(3) > 0
		}
	}
	storage := s.pick(slices.Sorted(maps.Keys(next)))
	var versions []any
	for _, v := range allVersions {
		if served, has := next[v]; has {
			versions = append(versions, version(v, served, v == storage))
		}
	}
	crd := s.get(s.T, crds, "", "widgets.example.com")
	_ = unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions")
	_, err := s.testClient.at(crds, "").Update(s.Context(), crd, metav1.UpdateOptions{})
	missing := slices.ContainsFunc(s.stored, func(v string) bool { _, has := next[v]; return !has })
	switch {
	case missing && (!apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "must remain in spec.versions until a storage migration")):
		s.Fatalf("versions %v, stored %v: %v", next, s.stored, err)
	case !missing && err != nil:
		s.Fatalf("versions %v, stored %v: %v", next, s.stored, err)
	case missing:
		return
	}
	s.versions, s.storage = next, storage
	if !slices.Contains(s.stored, storage) {
		s.stored = append(s.stored, storage)
	}
}

// write creates, changes or deletes an object at a served version.
func (s *versionModel) write() {
	at, name := s.pick(s.served()), fmt.Sprint("w", s.random.IntN(12))
	objects := s.testClient.at(s.client(at), "default")
	s.writes++
	value := fmt.Sprint("value ", s.writes)
	var err error
	if _, exists := s.values[name]; !exists {
		o := object("Widget", "example.com/"+at, name)
		o.Object["value"] = value
		_, err = objects.Create(s.Context(), o, metav1.CreateOptions{})
	} else if s.random.IntN(6) == 0 {
		s.delete(s.T, s.client(at), "default", name, "")
		delete(s.values, name)
		delete(s.storedAt, name)
		return
	} else {
		patch := []byte(`{"value":"` + value + `"}`)
		_, err = objects.Patch(s.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		s.Fatalf("write %s at %s: %v", name, at, err)
	}
	s.values[name], s.storedAt[name] = value, s.storage
}

// touch writes an object without changing it. The write must change the resourceVersion in exactly two cases. The
// object is stored at another version than the storage version, or managedFields has an entry for a version that the
// CRD no longer has. A write drops such entries.
func (s *versionModel) touch(name string) {
	at := s.client(s.pick(s.served()))
	before := s.get(s.T, at, "default", name)
	s.patch(s.T, at, "default", name, `{}`)
	changed := s.get(s.T, at, "default", name).GetResourceVersion() != before.GetResourceVersion()
	want := s.storedAt[name] != s.storage ||
		slices.ContainsFunc(before.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool {
			_, has := s.versions[strings.TrimPrefix(m.APIVersion, "example.com/")]
			return !has
		})
	if changed != want {
		s.Fatalf("%s, stored at %s, storage version %s: got changed %v", name, s.storedAt[name], s.storage, changed)
	}
	s.storedAt[name] = s.storage
}

// migrate migrates manually as documented: it reads and writes all objects, and shortens storedVersions.
func (s *versionModel) migrate() {
	objects := s.testClient.at(s.client(s.pick(s.served())), "default")
	all, err := objects.List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for i := range all.Items {
		if _, err := objects.Update(s.Context(), &all.Items[i], metav1.UpdateOptions{}); err != nil {
			s.Fatal(err)
		}
	}
	crd := s.get(s.T, crds, "", "widgets.example.com")
	_ = unstructured.SetNestedStringSlice(crd.Object, []string{s.storage}, "status", "storedVersions")
	if _, err := s.testClient.at(crds, "").UpdateStatus(s.Context(), crd, metav1.UpdateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.stored = []string{s.storage}
	for name := range s.values {
		s.storedAt[name] = s.storage
	}
	for _, name := range slices.Sorted(maps.Keys(s.values)) {
		s.touch(name) // must not change the object, because the migration has already written it
	}
}

// check compares all objects and storedVersions with the model.
func (s *versionModel) check() {
	crd := s.get(s.T, crds, "", "widgets.example.com")
	if stored, _, _ := unstructured.NestedStringSlice(crd.Object, "status", "storedVersions"); !slices.Equal(
		stored, s.stored,
	) {
		s.Fatalf("storedVersions are %v, want %v", stored, s.stored)
	}
	for _, v := range allVersions {
		list, err := s.testClient.at(s.client(v), "default").List(s.Context(), metav1.ListOptions{})
		if !s.versions[v] {
			if !apierrors.IsNotFound(err) {
				s.Fatalf("list at unserved version %s: got %v, want NotFound", v, err)
			}
			continue
		}
		if err != nil {
			s.Fatal(err)
		}
		got := map[string]string{}
		for _, o := range list.Items {
			got[o.GetName()], _ = o.Object["value"].(string)
			if o.GetAPIVersion() != "example.com/"+v {
				s.Fatalf("%s read at %s has apiVersion %s", o.GetName(), v, o.GetAPIVersion())
			}
		}
		if !maps.Equal(got, s.values) {
			s.Fatalf("list at %s: got %v, want %v", v, got, s.values)
		}
	}
}

// TestVersionSwitches checks random sequences of version switches, writes at any served version, and manual
// migrations. Every object must be readable at every served version, and storedVersions must be right. (VER-003
// VER-036 VER-038 VER-041 VER-047 VER-054 VER-057 VER-058)
func TestVersionSwitches(t *testing.T) {
	w := connect(t, testserver.Start(t))
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := &versionModel{
				T: t, testClient: w, random: rand.New(rand.NewPCG(seed, 8)), versions: map[string]bool{"v1": true},
				storage: "v1", stored: []string{"v1"}, values: map[string]string{}, storedAt: map[string]string{},
			}
			w.create(t, crds, "", definition("example.com", "Widget", "Namespaced"))
			for range 60 {
				switch n := s.random.IntN(10); {
				case n < 3:
					s.changeVersions()
				case n < 7:
					s.write()
				case n < 9 && len(s.values) > 0:
					s.touch(s.pick(slices.Sorted(maps.Keys(s.values))))
				case n == 9:
					s.migrate()
				}
				s.check()
			}
			w.delete(t, crds, "", "widgets.example.com", "")
			w.awaitGone(t, crds, "", "widgets.example.com")
		})
	}
}
