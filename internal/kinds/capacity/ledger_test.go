package capacity

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

// What is known of each node is what a ledger knows that begins now, whatever Pods have come, gone, changed or come again elsewhere.
func TestLedgerFollowsTheStore(t *testing.T) {
	store, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	r, x := rand.New(rand.NewPCG(16, 7)), New(store.Head)
	for i := range 2000 {
		key := fmt.Sprint(pods, "ns/", r.IntN(30))
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
			continue // so that more than one change comes at a time
		}
		x.refresh()
		anew := New(store.Head)
		anew.refresh()
		if len(x.nodes) != len(anew.nodes) || len(x.pods) != len(anew.pods) {
			t.Fatalf("%d: %d Pods on %d nodes, want %d on %d", i, len(x.pods), len(x.nodes), len(anew.pods), len(anew.nodes))
		}
		for node := range anew.nodes {
			if r.IntN(2) > 0 {
				continue // so that some loads are looked at late
			}
			for _, name := range []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, "example.com/gpu"} {
				if got, want := x.on(node).sum(name), anew.on(node).sum(name); got != want {
					t.Fatalf("%d: %d of %s on %s, want %d", i, got, name, node, want)
				}
			}
		}
	}
}

// What kubelets write of their Nodes has no Pod looked at again.
func TestNodesMayBeWrittenOften(t *testing.T) {
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
		key := fmt.Sprint(pods, "ns/", i)
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
		t.Fatalf("%d Pods are yet to be read, want 10", n)
	}
	x.on("n")
	for i := range 10 {
		write(nodes+"n", fmt.Appendf(nil, `{"status":{"allocatable":{"cpu":"%d"}}}`, i))
		write(ledgers+"n", []byte("{}"))
	}
	if n := unread(); n != 0 {
		t.Errorf("%d Pods are to be read once more", n)
	}
	key := fmt.Sprint(pods, "ns/1")
	write(key, recordOf(t, key, randomPod(r, "n")).Value)
	if n := unread(); n != 1 {
		t.Errorf("%d Pods are to be read, want the one that was written", n)
	}
}
