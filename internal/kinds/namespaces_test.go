package kinds_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/kinds"
)

func (c *cluster) namespace(name string) *corev1.Namespace {
	c.Helper()
	js := c.stored(c.version("v1", "Namespace"), name)
	if js == nil {
		return nil
	}
	n := new(corev1.Namespace)
	if err := json.Unmarshal(js, n); err != nil {
		c.Fatal(err)
	}
	return n
}

// TestNamespaceLife checks that a deleted namespace remains until it is finalized, and that three system namespaces
// cannot be deleted (CRD-031).
func TestNamespaceLife(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	v := c.version("v1", "Namespace")
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		c.mustCreate(v, name, `{metadata: {name: `+name+`}}`)
		if n := c.namespace(name); n.Labels["kubernetes.io/metadata.name"] != name || n.Status.Phase != "Active" ||
			!slices.Equal(n.Spec.Finalizers, []corev1.FinalizerName{"kubernetes"}) {
			t.Errorf("got namespace %+v, want a labeled active one with the finalizer", n)
		}
		_, gone, err := c.Engine.Delete(t.Context(), c.at(v, name, ""), metav1.DeleteOptions{}, c.by())
		if name != "kube-node-lease" {
			expectError(t, err, `namespaces "`+name+`" is forbidden: this namespace may not be deleted`)
			continue
		}
		if n := c.namespace(name); err != nil || gone || n.Status.Phase != "Terminating" || n.DeletionTimestamp == nil {
			t.Errorf("delete: got gone %v, error %v, namespace %+v; want a terminating namespace", gone, err, n)
		}
		if _, err := c.put(v, name, "finalize", `{metadata: {name: `+name+`}, spec: {}}`); err != nil {
			t.Error(err)
		}
		if _, gone, err := c.Engine.Delete(t.Context(), c.at(v, name, ""), metav1.DeleteOptions{},
			c.by()); c.namespace(name) != nil && (!gone || err != nil) {
			t.Errorf("%s still exists after its last finalizer was removed: %v", name, err)
		}
	}
}

// TestEventTTL checks that EventTTL applies only to Events.
func TestEventTTL(t *testing.T) {
	for _, d := range kinds.Definitions(kinds.Config{EventTTL: time.Hour}) {
		if want := map[bool]int64{true: 3600}[d.Names.Kind == "Event"]; d.Behavior.TTL != want {
			t.Errorf("%s: got TTL %d, want %d", d.Names.Kind, d.Behavior.TTL, want)
		}
	}
}
