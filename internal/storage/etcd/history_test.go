package etcd_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/trellis-k8s/trellis/internal/storage/etcd"
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
