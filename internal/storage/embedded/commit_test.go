package embedded

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Nothing of a commit that was given up is kept, however long the log stands still.
func TestWithdrawnCommitsAreLetGo(t *testing.T) {
	over := make(chan time.Time)
	close(over)
	s := &Store{options: options{commitTimeout: func() <-chan time.Time { return over }}}
	s.queue.init()
	for range 3 {
		if _, err := s.Commit(t.Context(), []storage.Write{{Key: "/a", Value: []byte("large")}}); !errors.Is(err, storage.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	s.options.commitTimeout = func() <-chan time.Time { return nil }
	ctx, cancel := context.WithCancel(t.Context())
	context.AfterFunc(ctx, func() {})
	go func() {
		<-s.queue.ready // it waits
		cancel()
	}()
	if _, err := s.Commit(ctx, []storage.Write{{Key: "/a", Value: []byte("large")}}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if n := len(s.queue.waiting); n != 0 {
		t.Errorf("%d are kept", n)
	}
}
