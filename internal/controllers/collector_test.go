package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/testserver"
)

const hold = "example.com/hold"

func configMap(name string) *unstructured.Unstructured { return object("ConfigMap", "v1", name) }
func secret(name string) *unstructured.Unstructured    { return object("Secret", "v1", name) }

// requireKept waits until the garbage collector has handled all earlier events. It then fails the test if an object is
// missing or is being deleted. To wait, it creates another object whose owner does not exist. The garbage collector
// deletes that object after it has handled the earlier events.
func (w *testClient) requireKept(t *testing.T, gvr schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	for range 2 { // the first pass handles queued objects, the second one those that the first has queued
		ghost := owned(
			configMap("ghost"),
			owners(metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "none", UID: "none"}),
		)
		w.create(t, configMaps, "default", ghost)
		w.awaitGone(t, configMaps, "default", "ghost")
	}
	if o := w.get(t, gvr, namespace, name); o.GetDeletionTimestamp() != nil {
		t.Errorf("%s %s is being deleted", gvr.Resource, name)
	}
}

// awaitWatched waits until the garbage collector watches a kind. The garbage collector then deletes an object whose
// owner of that kind does not exist.
func (w *testClient) awaitWatched(t *testing.T, apiVersion, kind string) {
	t.Helper()
	none := metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: "none", UID: "none"}
	w.create(t, configMaps, "default", owned(configMap("pending"), owners(none)))
	w.awaitGone(t, configMaps, "default", "pending")
}

// awaitUnwatched waits until the garbage collector no longer watches a kind. The garbage collector then keeps the
// object "pending", although its owner of that kind has never existed.
func (w *testClient) awaitUnwatched(t *testing.T, apiVersion, kind string) {
	t.Helper()
	none := metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: "none", UID: "none-of-" + types.UID(kind)}
	eventually(t, kind+" is not watched", func(ctx context.Context) bool {
		_, err := w.at(configMaps, "default").
			Create(ctx, owned(configMap("pending"), owners(none)), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		for range 12 { // this takes longer than the pause before a discovery
			w.create(
				t,
				configMaps,
				"default",
				owned(
					configMap("ghost"),
					owners(metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "none", UID: "none"}),
				),
			)
			w.awaitGone(t, configMaps, "default", "ghost")
		}
		_, err = w.at(configMaps, "default").Get(ctx, "pending", metav1.GetOptions{})
		return err == nil
	})
}

// TestBackground checks that background deletion deletes the dependents of an object, and no other objects. (CRD-066)
func TestBackground(t *testing.T) {
	w := connect(t, testserver.Start(t))
	owner := w.create(t, configMaps, "default", configMap("owner"))
	for i := range 20 {
		w.create(t, secrets, "default", owned(secret(fmt.Sprint("s", i)), owners(reference(owner, true))))
	}
	w.create(t, secrets, "default", secret("other"))
	w.delete(t, configMaps, "default", "owner", metav1.DeletePropagationBackground)
	for i := range 20 {
		w.awaitGone(t, secrets, "default", fmt.Sprint("s", i))
	}
	w.requireKept(t, secrets, "default", "other")
}

// TestForeground checks that foreground deletion deletes the owner after its blocking dependents, and does not wait for
// others. (CRD-066)
func TestForeground(t *testing.T) {
	w := connect(t, testserver.Start(t))
	owner := w.create(t, configMaps, "default", configMap("owner"))
	w.create(t, secrets, "default", owned(secret("blocking"), owners(reference(owner, true)), hold))
	w.create(t, secrets, "default", owned(secret("nonblocking"), owners(reference(owner, false)), hold))
	w.delete(t, configMaps, "default", "owner", metav1.DeletePropagationForeground)
	ending := func(o *unstructured.Unstructured) bool { return o.GetDeletionTimestamp() != nil }
	w.await(t, secrets, "default", "blocking", "is being deleted", ending)
	w.await(t, secrets, "default", "nonblocking", "is being deleted", ending)
	if o := w.get(t, configMaps, "default", "owner"); !slices.Contains(
		o.GetFinalizers(), metav1.FinalizerDeleteDependents,
	) {
		t.Errorf("the owner does not wait for its dependents: finalizers %v", o.GetFinalizers())
	}
	w.removeFinalizers(t, secrets, "default", "blocking")
	w.awaitGone(t, configMaps, "default", "owner")
	w.get(t, secrets, "default", "nonblocking")
	w.removeFinalizers(t, secrets, "default", "nonblocking")
	w.awaitGone(t, secrets, "default", "nonblocking")
}

// TestForegroundWithoutDependents checks that foreground deletion deletes an owner without dependents. (CRD-066)
func TestForegroundWithoutDependents(t *testing.T) {
	w := connect(t, testserver.Start(t))
	w.create(t, configMaps, "default", configMap("owner"))
	w.delete(t, configMaps, "default", "owner", metav1.DeletePropagationForeground)
	w.awaitGone(t, configMaps, "default", "owner")
}

// TestForegroundUnblocked checks that foreground deletion continues when a dependent stops blocking without being
// deleted. (CRD-066)
func TestForegroundUnblocked(t *testing.T) {
	w := connect(t, testserver.Start(t))
	owner := w.create(t, configMaps, "default", configMap("owner"))
	w.create(t, secrets, "default", owned(secret("s"), owners(reference(owner, true)), hold))
	w.delete(t, configMaps, "default", "owner", metav1.DeletePropagationForeground)
	w.await(
		t,
		secrets,
		"default",
		"s",
		"is being deleted",
		func(o *unstructured.Unstructured) bool { return o.GetDeletionTimestamp() != nil },
	)
	w.patch(t, secrets, "default", "s", `{"metadata":{"ownerReferences":null}}`)
	w.awaitGone(t, configMaps, "default", "owner")
}

// TestForegroundCycle checks that objects that own each other in a cycle do not block each other. (CRD-066)
func TestForegroundCycle(t *testing.T) {
	w := connect(t, testserver.Start(t))
	a := w.create(t, configMaps, "default", configMap("a"))
	b := w.create(t, configMaps, "default", owned(configMap("b"), owners(reference(a, true))))
	c := w.create(t, configMaps, "default", owned(configMap("c"), owners(reference(b, true))))
	w.patch(t, configMaps, "default", "a", fmt.Sprintf(
		`{"metadata":{"ownerReferences":[`+
			`{"apiVersion":"v1","kind":"ConfigMap","name":"c","uid":%q,"blockOwnerDeletion":true}]}}`,
		c.GetUID(),
	))
	w.delete(t, configMaps, "default", "a", metav1.DeletePropagationForeground)
	for _, name := range []string{"a", "b", "c"} {
		w.awaitGone(t, configMaps, "default", name)
	}
}

// TestOrphan checks that orphaning removes the references to the deleted owner and keeps the dependents. (CRD-066)
func TestOrphan(t *testing.T) {
	w := connect(t, testserver.Start(t))
	owner := w.create(t, configMaps, "default", configMap("owner"))
	keep := w.create(t, configMaps, "default", configMap("keep"))
	w.create(t, secrets, "default", owned(secret("one"), owners(reference(owner, true))))
	w.create(t, secrets, "default", owned(secret("both"), owners(reference(keep, false), reference(owner, false))))
	w.delete(t, configMaps, "default", "owner", metav1.DeletePropagationOrphan)
	w.awaitGone(t, configMaps, "default", "owner")
	if o := w.get(t, secrets, "default", "one"); len(o.GetOwnerReferences()) != 0 {
		t.Errorf("references left: %v", o.GetOwnerReferences())
	}
	if o := w.get(t, secrets, "default", "both"); len(o.GetOwnerReferences()) != 1 ||
		o.GetOwnerReferences()[0].UID != keep.GetUID() {
		t.Errorf("references left: %v", o.GetOwnerReferences())
	}
	w.requireKept(t, secrets, "default", "one")
}

// TestOwnerChain checks that deleting the first object of a chain of owners deletes all of them. (CRD-066)
func TestOwnerChain(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
	} {
		t.Run(string(policy), func(t *testing.T) {
			w := connect(t, testserver.Start(t))
			last := w.create(t, configMaps, "default", configMap("c0"))
			for i := range 6 {
				last = w.create(
					t, configMaps, "default", owned(configMap(fmt.Sprint("c", i+1)), owners(reference(last, true))),
				)
			}
			w.delete(t, configMaps, "default", "c0", policy)
			for i := range 7 {
				w.awaitGone(t, configMaps, "default", fmt.Sprint("c", i))
			}
		})
	}
}

// TestTwoOwners checks that the deletion of one of two owners only removes the reference to it. A foreground deletion
// does not wait for a dependent that is kept. (CRD-066)
func TestTwoOwners(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
	} {
		t.Run(string(policy), func(t *testing.T) {
			w := connect(t, testserver.Start(t))
			a := w.create(t, configMaps, "default", configMap("a"))
			b := w.create(t, configMaps, "default", configMap("b"))
			w.create(t, secrets, "default", owned(secret("s"), owners(reference(a, true), reference(b, true))))
			w.delete(t, configMaps, "default", "a", policy)
			w.awaitGone(t, configMaps, "default", "a")
			w.await(t, secrets, "default", "s", "has one owner", func(o *unstructured.Unstructured) bool {
				refs := o.GetOwnerReferences()
				return o.GetDeletionTimestamp() == nil && len(refs) == 1 && refs[0].UID == b.GetUID()
			})
			w.delete(t, configMaps, "default", "b", policy)
			w.awaitGone(t, secrets, "default", "s")
		})
	}
}

// TestDanglingReferences checks that objects are deleted if their owner has never existed or has another UID. (CRD-066)
func TestDanglingReferences(t *testing.T) {
	w := connect(t, testserver.Start(t))
	owner := w.create(t, configMaps, "default", configMap("owner"))
	never := reference(owner, false)
	never.Name, never.UID = "never", "never"
	changed := reference(owner, false)
	changed.UID = types.UID("before")
	w.create(t, secrets, "default", owned(secret("never"), owners(never)))
	w.create(t, secrets, "default", owned(secret("changed"), owners(changed)))
	w.awaitGone(t, secrets, "default", "never")
	w.awaitGone(t, secrets, "default", "changed")
	w.requireKept(t, configMaps, "default", "owner")
}

// awaitInvalidOwner waits for the garbage collector's Event about an object with an invalid owner.
func (w *testClient) awaitInvalidOwner(t testing.TB, namespace, name, message string) {
	t.Helper()
	events := w.at(schema.GroupVersionResource{Version: "v1", Resource: "events"}, namespace)
	var seen []string
	for begin := time.Now(); time.Since(begin) < 20*time.Second; <-time.After(50 * time.Millisecond) {
		list, err := events.List(
			t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + ",reason=OwnerRefInvalidNamespace"},
		)
		if err != nil {
			t.Fatal(err)
		}
		seen = nil
		for _, e := range list.Items {
			component, _, _ := unstructured.NestedString(e.Object, "source", "component")
			if text, _, _ := unstructured.NestedString(e.Object, "message"); text == message &&
				component == "garbage-collector-controller" {
				return
			}
			seen = append(seen, fmt.Sprint(e.Object))
		}
	}
	t.Errorf("no Event about %s has the message %s: %v", name, message, seen)
}

// TestOwnerInAnotherNamespace checks that a reference across namespaces is dangling and causes an Event, whether or
// not the owner is known. The owner keeps its valid dependents. (CRD-066)
func TestOwnerInAnotherNamespace(t *testing.T) {
	w := connect(t, testserver.Start(t))
	w.create(t, namespaces, "", object("Namespace", "v1", "far"))
	owner := w.create(t, configMaps, "default", configMap("owner"))
	w.create(t, secrets, "default", owned(secret("near"), owners(reference(owner, false))))
	w.create(t, secrets, "far", owned(secret("far"), owners(reference(owner, false))))
	w.awaitGone(t, secrets, "far", "far")
	w.requireKept(t, secrets, "default", "near")
	w.create(t, secrets, "far", owned(secret("again"), owners(reference(owner, false))))
	w.awaitGone(t, secrets, "far", "again")
	for _, name := range []string{"far", "again"} {
		w.awaitInvalidOwner(
			t,
			"far",
			name,
			fmt.Sprintf(
				`ownerRef [v1/ConfigMap, namespace: far, name: owner, uid: %s] does not exist in namespace "far"`,
				owner.GetUID(),
			),
		)
	}
	w.delete(t, configMaps, "default", "owner", "")
	w.awaitGone(t, secrets, "default", "near")
}

// TestNamespacedOwnerOfClusterScoped checks that a cluster-scoped object with a namespaced owner is kept, because
// such an owner cannot be looked up. (CRD-066)
func TestNamespacedOwnerOfClusterScoped(t *testing.T) {
	w := connect(t, testserver.Start(t))
	owner := w.create(t, configMaps, "default", configMap("owner"))
	w.create(t, namespaces, "", owned(object("Namespace", "v1", "kept"), owners(reference(owner, false))))
	w.awaitInvalidOwner(
		t,
		"default",
		"kept",
		fmt.Sprintf(
			`ownerRef [v1/ConfigMap, namespace: , name: owner, uid: %s] does not exist in namespace ""`,
			owner.GetUID(),
		),
	)
	w.delete(t, configMaps, "default", "owner", "")
	w.requireKept(t, namespaces, "", "kept")
}

// TestCustomOwner checks that the dependents of a custom object are deleted. (CRD-066)
func TestCustomOwner(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
	} {
		t.Run(string(policy), func(t *testing.T) {
			w := connect(t, testserver.Start(t))
			widgets := w.crd(t, "example.com", "Widget", "Namespaced")
			owner := w.create(t, widgets, "default", object("Widget", "example.com/v1", "w"))
			w.create(t, configMaps, "default", owned(configMap("c"), owners(reference(owner, true))))
			w.create(t, accounts, "default", owned(object("ServiceAccount", "v1", "a"), owners(reference(owner, true))))
			w.delete(t, widgets, "default", "w", policy)
			w.awaitGone(t, widgets, "default", "w")
			w.awaitGone(t, configMaps, "default", "c")
			w.awaitGone(t, accounts, "default", "a")
		})
	}
}

// TestCustomDependent checks that a custom object is deleted after its owner. (CRD-066)
func TestCustomDependent(t *testing.T) {
	w := connect(t, testserver.Start(t))
	widgets := w.crd(t, "example.com", "Widget", "Namespaced")
	owner := w.create(t, configMaps, "default", configMap("c"))
	w.create(t, widgets, "default", owned(object("Widget", "example.com/v1", "w"), owners(reference(owner, false))))
	w.delete(t, configMaps, "default", "c", "")
	w.awaitGone(t, widgets, "default", "w")
}

// TestClusterScopedOwner checks that the dependents of a cluster-scoped owner are deleted, namespaced or not. (CRD-066)
func TestClusterScopedOwner(t *testing.T) {
	w := connect(t, testserver.Start(t))
	hosts := w.crd(t, "example.com", "Host", "Cluster")
	owner := w.create(t, hosts, "", object("Host", "example.com/v1", "h"))
	w.create(t, namespaces, "", object("Namespace", "v1", "far"))
	w.create(t, configMaps, "default", owned(configMap("c"), owners(reference(owner, false))))
	w.create(t, secrets, "far", owned(secret("s"), owners(reference(owner, false))))
	w.create(t, hosts, "", owned(object("Host", "example.com/v1", "child"), owners(reference(owner, false))))
	w.delete(t, hosts, "", "h", "")
	w.awaitGone(t, configMaps, "default", "c")
	w.awaitGone(t, secrets, "far", "s")
	w.awaitGone(t, hosts, "", "child")
}

// TestOwnerKindAppearsLater checks that an object is kept while the kind of its owner is not served. When the kind is
// served, the owner is looked up. (CRD-066)
func TestOwnerKindAppearsLater(t *testing.T) {
	w := connect(t, testserver.Start(t))
	later := metav1.OwnerReference{APIVersion: "later.example.com/v1", Kind: "Late", Name: "l", UID: "l"}
	w.create(t, configMaps, "default", owned(configMap("c"), owners(later)))
	w.requireKept(t, configMaps, "default", "c")
	w.crd(t, "later.example.com", "Late", "Namespaced")
	w.awaitGone(t, configMaps, "default", "c")
}

// TestDependentKindAppearsLater checks that a kind created after the owner is watched, and that foreground deletion
// waits for its objects. (CRD-066)
func TestDependentKindAppearsLater(t *testing.T) {
	w := connect(t, testserver.Start(t))
	owner := w.create(t, configMaps, "default", configMap("owner"))
	w.create(t, secrets, "default", owned(secret("s"), owners(reference(owner, false))))
	widgets := w.crd(t, "example.com", "Widget", "Namespaced")
	w.create(
		t, widgets, "default", owned(object("Widget", "example.com/v1", "w"), owners(reference(owner, true)), hold),
	)
	w.await(t, widgets, "default", "w", "is being deleted", func(o *unstructured.Unstructured) bool {
		foreground := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}
		_ = w.at(configMaps, "default").Delete(t.Context(), "owner", foreground)
		return o.GetDeletionTimestamp() != nil
	})
	w.removeFinalizers(t, widgets, "default", "w")
	w.awaitGone(t, configMaps, "default", "owner")
}

// TestDependentsOfDeletedCRD checks that the dependents of custom objects are deleted with the CRD, although the kind
// of their owners is no longer served. (CRD-066, CRD-027)
func TestDependentsOfDeletedCRD(t *testing.T) {
	w := connect(t, testserver.Start(t))
	widgets := w.crd(t, "example.com", "Widget", "Namespaced")
	w.awaitWatched(t, "example.com/v1", "Widget")
	for i := range 10 {
		owner := w.create(t, widgets, "default", object("Widget", "example.com/v1", fmt.Sprint("w", i)))
		w.create(t, configMaps, "default", owned(configMap(fmt.Sprint("c", i)), owners(reference(owner, false))))
	}
	w.delete(t, crds, "", "widgets.example.com", "")
	for i := range 10 {
		w.awaitGone(t, configMaps, "default", fmt.Sprint("c", i))
	}
}

// TestOwnerKindUnserved checks that owners of a kind that is temporarily not served keep their dependents, and still
// own them when the kind is served again. (CRD-066)
func TestOwnerKindUnserved(t *testing.T) {
	w := connect(t, testserver.Start(t))
	w.create(
		t,
		crds,
		"",
		definition("example.com", "Widget", "Namespaced", version("v1", true, true), version("v2", true, false)),
	)
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	w.awaitWatched(t, "example.com/v1", "Widget")
	owner := w.create(t, widgets, "default", object("Widget", "example.com/v1", "w"))
	w.create(t, configMaps, "default", owned(configMap("c"), owners(reference(owner, false))))
	w.requireKept(t, configMaps, "default", "c") // its owner is in the graph now
	serve := func(v1, v2 bool) {
		t.Helper()
		eventually(t, "the CRD is updated", func(ctx context.Context) bool {
			crd := w.get(t, crds, "", "widgets.example.com")
			_ = unstructured.SetNestedSlice(
				crd.Object, []any{version("v1", v1, true), version("v2", v2, false)}, "spec", "versions",
			)
			_, err := w.at(crds, "").Update(ctx, crd, metav1.UpdateOptions{})
			return err == nil
		})
	}
	serve(false, false)
	w.awaitUnwatched(t, "example.com/v1", "Widget")
	w.create(t, secrets, "default", owned(secret("s"), owners(reference(owner, false))))
	lost := metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "none", UID: "lost"}
	patch, err := json.Marshal(owners(reference(owner, false), lost))
	if err != nil {
		t.Fatal(err)
	}
	w.patch(t, configMaps, "default", "c", `{"metadata":{"ownerReferences":`+string(patch)+`}}`) // queues the object
	w.requireKept(t, configMaps, "default", "c")
	w.requireKept(t, secrets, "default", "s")
	serve(false, true)
	w.awaitGone(t, configMaps, "default", "pending")
	w.await(t, configMaps, "default", "c", "has only the existing owner", func(o *unstructured.Unstructured) bool {
		refs := o.GetOwnerReferences()
		return len(refs) == 1 && refs[0].UID == owner.GetUID()
	})
	w.requireKept(t, secrets, "default", "s")
	widgets.Version = "v2"
	w.delete(t, widgets, "default", "w", "")
	w.awaitGone(t, configMaps, "default", "c")
	w.awaitGone(t, secrets, "default", "s")
}

// TestCollectAfterRestart checks that garbage collection continues after a restart. (CRD-066)
func TestCollectAfterRestart(t *testing.T) {
	s := testserver.Start(t, testserver.OnDisk())
	w := connect(t, s)
	owner := w.create(t, configMaps, "default", configMap("owner"))
	for i := range 50 {
		w.create(t, secrets, "default", owned(secret(fmt.Sprint("s", i)), owners(reference(owner, true))))
	}
	w.delete(t, configMaps, "default", "owner", metav1.DeletePropagationForeground)
	s.Restart()
	w = connect(t, s)
	w.awaitGone(t, configMaps, "default", "owner")
	for i := range 50 {
		_, err := w.at(secrets, "default").Get(t.Context(), fmt.Sprint("s", i), metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("secret s%d: %v", i, err)
		}
	}
}
