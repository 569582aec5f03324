package garbage

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
)

// TestPendingOwnersArePruned checks that a pending owner of an unserved kind is pruned after its dependents are
// deleted, and not before.
func TestPendingOwnersArePruned(t *testing.T) {
	c := New(nil, nil, &fakeKinds{})
	k := informer.Kind{
		GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Kind:                 "ConfigMap", Namespaced: true,
	}
	absent := schema.GroupKind{Group: "example.com", Kind: "Nothing"}
	const n = 10 * minAddsBetweenPrunes
	for i := range n {
		owner := metav1.OwnerReference{
			APIVersion: "example.com/v1",
			Kind:       "Nothing",
			Name:       "o",
			UID:        types.UID(fmt.Sprint("owner", i)),
		}
		o := &metav1.PartialObjectMetadata{}
		o.Name, o.Namespace, o.UID, o.OwnerReferences = "c", "default", types.UID(
			fmt.Sprint("c", i),
		), []metav1.OwnerReference{
			owner,
		}
		c.objectObserved(k, o)
		if err := c.findOwner(
			t.Context(), ownerID{owner.APIVersion, owner.Kind, "default", owner.Name, owner.UID},
		); err != nil {
			t.Fatal(err)
		}
		if i%100 != 0 {
			c.objectDeleted(o.UID)
		}
	}
	left := c.pendingOwners.take(absent)
	for i := 0; i < n; i += 100 {
		if id := (ownerID{"example.com/v1", "Nothing", "default", "o", types.UID(fmt.Sprint("owner", i))}); !left[id] {
			t.Fatalf("%v was pruned although an object still refers to it", id)
		}
	}
	if len(left) > 2*minAddsBetweenPrunes {
		t.Errorf("got %d pending owners, of which %d are needed", len(left), n/100)
	}
}
