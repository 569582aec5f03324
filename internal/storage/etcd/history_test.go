package etcd_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// TestReplayIsBounded checks that Replay returns at most the events of a response of etcd (1,000 revisions) above
// storage.ReplayBytes, and that repeated calls return all events. If etcd stops to respond, Replay returns the events
// that it has received.
func TestReplayIsBounded(t *testing.T) {
	const revisions, perResponse = 1500, 1000
	_, r, c, s := relayedWith(t, etcd.Options{Timeout: 2 * time.Second})
	first := foreignPut(t, c, "a", "1")
	last := first
	for range revisions {
		last = foreignPut(t, c, "a", strings.Repeat("x", 2<<10))
	}
	if _, err := s.Wait(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	total := 0
	for reached, calls := first, 1; reached < last; calls++ {
		events, next, err := s.Replay(t.Context(), "", reached, last)
		if err != nil || next <= reached || len(events) > perResponse {
			t.Fatalf("call %d has returned %d events up to revision %d: %v", calls, len(events), next, err)
		}
		reached, total = next, total+len(events)
	}
	if total != revisions {
		t.Errorf("Replay has returned %d events, want %d", total, revisions)
	}
	small := last
	for range revisions {
		last = foreignPut(t, c, "b", "1")
	}
	if _, err := s.Wait(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	var stopped atomic.Bool
	r.set(func(method string, response []byte) ([][]byte, error) {
		var resp pb.WatchResponse
		if method != methodWatch {
			return [][]byte{response}, nil
		}
		if err := proto.Unmarshal(response, &resp); err != nil {
			t.Error(err)
		}
		if !resp.Created && stopped.Swap(true) {
			return nil, nil
		}
		return [][]byte{response}, nil
	})
	events, reached, err := s.Replay(t.Context(), "", small, last)
	if err != nil || len(events) != perResponse || reached != small+perResponse {
		t.Errorf("Replay has returned %d events up to revision %d, want %d up to %d: %v", len(events), reached,
			perResponse, small+perResponse, err)
	}
}

// TestOldReads checks that a store reads one old state at a time from etcd, and that concurrent callers of At with the
// same revision share a read. Each caller waits only until its context ends.
func TestOldReads(t *testing.T) {
	e := storagetest.StartEtcd(t)
	r, c := newRelay(t, e.URL), newClient(t, e.URL)
	first := foreignPut(t, c, "a", "1")
	for range 5 {
		foreignPut(t, c, "a", "1")
	}
	s := open(t, etcd.Options{Cluster: etcd.Cluster{Servers: []string{r.url}}}) // has no history in memory
	started, release := make(chan struct{}, 100), make(chan struct{})
	r.set(func(method string, response []byte) ([][]byte, error) {
		if method == methodRangeStream {
			started <- struct{}{}
			<-release
		}
		return [][]byte{response}, nil
	})
	var reads sync.WaitGroup
	for i := range 6 {
		reads.Go(func() {
			revision := first + int64(i%2)
			if old, err := s.At(t.Context(), revision); err != nil || old.Get("a").Modified != revision {
				t.Errorf("At(%d): %v, %v", revision, old, err)
			}
		})
	}
	<-started
	limited, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := s.At(limited, first+2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("At during another read: %v", err)
	}
	if n := len(started); n != 0 {
		t.Errorf("%d reads run at the same time", n+1)
	}
	close(release)
	reads.Wait()
	if n := len(started) + 1; n > 4 { // each read has one or two responses
		t.Errorf("two states were read with %d responses", n)
	}
}
