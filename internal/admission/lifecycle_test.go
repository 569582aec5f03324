package admission

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestCreateIn checks that creates in missing and terminating namespaces are rejected. CRD-031
func TestCreateIn(t *testing.T) {
	gr := schema.GroupResource{Group: "g", Resource: "r"}
	if err := CreateIn("n", &object.Meta{}, gr, "x"); err != nil {
		t.Error(err)
	}
	if err := CreateIn("n", nil, gr, "x"); !apierrors.IsNotFound(err) || err.Error() != `namespaces "n" not found` {
		t.Error(err)
	}
	err := CreateIn("n", &object.Meta{DeletionTimestamp: "2026-01-01T00:00:00Z"}, gr, "")
	if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, "NamespaceTerminating") {
		t.Error(err)
	}
}

// TestDelete checks that the system namespaces cannot be deleted, and that other namespaces can. CRD-031
func TestDelete(t *testing.T) {
	for _, name := range []string{"default", "kube-system", "kube-public"} {
		if err := deletable(namespaces, name); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, gr := range []schema.GroupResource{namespaces, {Resource: "pods"}} {
		if err := deletable(gr, "kube-node-lease"); err != nil {
			t.Error(err)
		}
	}
	if err := deletable(schema.GroupResource{Group: "other", Resource: "namespaces"}, "default"); err != nil {
		t.Error(err)
	}
}
