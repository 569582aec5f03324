package capacity

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

// TestUsageFollowsStore creates, changes and deletes random Pods and creates them again on other nodes. It checks
// that the updated index equals an index that is built from the current state.
func TestUsageFollowsStore(t *testing.T) {
	store, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	r, x := rand.New(rand.NewPCG(16, 7)), New(store.Head)
	for i := range 2000 {
		key := fmt.Sprint(podPrefix, "ns/", r.IntN(30))
		w := storage.Write{Key: key}
		rec := store.Head().Get(key)
		if rec != nil {
			w.Expected = rec.Modified
		}
		if rec == nil || r.IntN(3) > 0 {
			pod := randomPod(r, []string{"", "n1", "n2", "n3"}[r.IntN(4)])
			if r.IntN(4) == 0 {
				pod.Status.Phase = corev1.PodFailed
			}
			w.Value = recordOf(t, key, pod).Value
		}
		if _, err := store.Commit(t.Context(), []storage.Write{w}); err != nil {
			t.Fatal(err)
		}
		if r.IntN(3) > 0 {
			continue // some refreshes must process several changes
		}
		x.refresh()
		fresh := New(store.Head)
		fresh.refresh()
		if len(x.nodes) != len(fresh.nodes) || len(x.pods) != len(fresh.pods) {
			t.Fatalf("step %d: got %d Pods on %d nodes, want %d on %d", i, len(x.pods), len(x.nodes), len(fresh.pods),
				len(fresh.nodes))
		}
		for node := range fresh.nodes {
			if r.IntN(2) > 0 {
				continue // some loads must be computed only after several changes
			}
			for _, name := range []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, "example.com/gpu"} {
				if got, want := x.podsOn(node).sum(name), fresh.podsOn(node).sum(name); got != want {
					t.Fatalf("step %d: got %d of %s on %s, want %d", i, got, name, node, want)
				}
			}
		}
	}
}

// TestNodeWritesReadNoPods checks that writes of Nodes do not make the index read Pods again.
func TestNodeWritesReadNoPods(t *testing.T) {
	store, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	write := func(key string, value []byte) {
		w := storage.Write{Key: key, Value: value}
		if rec := store.Head().Get(key); rec != nil {
			w.Expected = rec.Modified
		}
		if _, err := store.Commit(t.Context(), []storage.Write{w}); err != nil {
			t.Fatal(err)
		}
	}
	x, r := New(store.Head), rand.New(rand.NewPCG(16, 8))
	for i := range 10 {
		key := fmt.Sprint(podPrefix, "ns/", i)
		write(key, recordOf(t, key, randomPod(r, "n")).Value)
	}
	unread := func() (n int) {
		x.refresh()
		for _, p := range x.pods {
			if p.rec != nil {
				n++
			}
		}
		return n
	}
	if n := unread(); n != 10 {
		t.Fatalf("got %d Pods to read, want 10", n)
	}
	x.podsOn("n")
	for i := range 10 {
		write(nodePrefix+"n", fmt.Appendf(nil, `{"status":{"allocatable":{"cpu":"%d"}}}`, i))
		write(usagePrefix+"n", []byte("{}"))
	}
	if n := unread(); n != 0 {
		t.Errorf("got %d Pods to read again, want 0", n)
	}
	key := fmt.Sprint(podPrefix, "ns/1")
	write(key, recordOf(t, key, randomPod(r, "n")).Value)
	if n := unread(); n != 1 {
		t.Errorf("got %d Pods to read, want only the written one", n)
	}
}
