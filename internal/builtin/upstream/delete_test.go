package upstream

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
)

func find(t *testing.T, name string) *sample {
	t.Helper()
	for _, s := range samples(t) {
		if s.name == name {
			return s
		}
	}
	t.Fatalf("no sample %s", name)
	return nil
}

// a Pod that has a node is given time to end; other objects are not.
func TestBeginDelete(t *testing.T) {
	for _, c := range []struct {
		sample   string
		options  metav1.DeleteOptions
		graceful bool
		grace    int64
	}{
		{"v1-Pod", metav1.DeleteOptions{}, true, 30},
		{"v1-Pod", metav1.DeleteOptions{GracePeriodSeconds: new(int64(5))}, true, 5},
		{"v1-Pod", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, true, 0},
		{"v1-ConfigMap", metav1.DeleteOptions{GracePeriodSeconds: new(int64(5))}, false, 0},
	} {
		s := find(t, c.sample)
		ours := &steps{t: t, endpoint: s.endpoint}
		obj := ours.read(s.json(t))
		obj.SetGeneration(1)
		ctx := ours.context("delete", "", s.object)
		graceful, pending, err := s.endpoint.Kind.BeginDelete(ctx, obj, &c.options)
		if err != nil || pending || graceful != c.graceful {
			t.Errorf("%s: got graceful %v, pending %v, %v", c.sample, graceful, pending, err)
			continue
		}
		if !graceful {
			if obj.GetDeletionTimestamp() != nil {
				t.Errorf("%s: is marked", c.sample)
			}
			continue
		}
		if grace := obj.GetDeletionGracePeriodSeconds(); grace == nil || *grace != c.grace || obj.GetGeneration() != 2 {
			t.Errorf("%s: got %v, generation %d", c.sample, grace, obj.GetGeneration())
		}
		if c.grace == 0 {
			continue
		}
		if _, pending, err = s.endpoint.Kind.BeginDelete(ctx, obj, &metav1.DeleteOptions{}); !pending || err != nil {
			t.Errorf("%s: the second delete: pending %v, %v", c.sample, pending, err)
		}
	}
}

func TestBeginDeletePreconditions(t *testing.T) {
	s := find(t, "v1-ConfigMap")
	ours := &steps{t: t, endpoint: s.endpoint}
	o := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(types.UID("other"))}}
	_, _, err := s.endpoint.Kind.BeginDelete(ours.context("delete", "", s.object), ours.read(s.json(t)), &o)
	if !apierrors.IsConflict(err) {
		t.Errorf("got %v", err)
	}
}

// dependents stay where the kind was made before there were owners, and go elsewhere; nobody owns an Event's.
func TestDependents(t *testing.T) {
	for name, want := range map[string]rest.GarbageCollectionPolicy{
		"batch-v1-Job": rest.OrphanDependents, "v1-ReplicationController": rest.OrphanDependents,
		"apps-v1-Deployment": rest.DeleteDependents, "v1-ConfigMap": rest.DeleteDependents, "v1-Event": rest.Unsupported,
	} {
		s := find(t, name)
		ctx := (&steps{t: t, endpoint: s.endpoint}).context("delete", "", s.object)
		if got := s.endpoint.Kind.Dependents(ctx); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		if graceful := s.endpoint.Kind.Graceful(); graceful {
			t.Errorf("%s is graceful", name)
		}
	}
}
