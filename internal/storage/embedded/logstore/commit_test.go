package logstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestWithdrawnCommitsAreReleased checks that withdrawn commits are removed from the queue while the log is blocked.
func TestWithdrawnCommitsAreReleased(t *testing.T) {
	timedOut := make(chan time.Time)
	close(timedOut)
	s := &Store{options: Options{CommitTimeout: func() <-chan time.Time { return timedOut }}}
	s.queue.init()
	for range 3 {
		_, err := s.Commit(t.Context(), []storage.Write{{Key: "/a", Value: []byte("large")}})
		if !errors.Is(err, storage.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	s.options.CommitTimeout = func() <-chan time.Time { return nil }
	ctx, cancel := context.WithCancel(t.Context())
	context.AfterFunc(ctx, func() {})
	go func() {
		<-s.queue.ready // the commit is in the queue
		cancel()
	}()
	_, err := s.Commit(ctx, []storage.Write{{Key: "/a", Value: []byte("large")}})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if n := len(s.queue.waiting); n != 0 {
		t.Errorf("%d commits are still in the queue, want 0", n)
	}
}
