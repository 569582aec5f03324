package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Fresh asks etcd for its revision and waits until the replica has reached it.
func (s *Store) Fresh(ctx context.Context) (*storage.Snapshot, error) {
	if s.lifetime.Err() != nil {
		return nil, storage.ErrClosed
	}
	revision, err := s.asking.join(ctx, s.revision)
	if err != nil {
		return nil, err
	}
	return s.reach(ctx, revision)
}

// revision reads etcd's revision, linearizably.
func (s *Store) revision() (int64, error) {
	ctx, cancel := context.WithTimeout(s.lifetime, s.options.Timeout/4) // there is time left for another try
	defer cancel()
	head := s.Head().Revision()
	resp, err := s.client.Get(ctx, s.options.Prefix, clientv3.WithKeysOnly())
	switch {
	case s.lifetime.Err() != nil:
		return 0, storage.ErrClosed
	case err != nil:
		return 0, unavailable(err)
	}
	if resp.Header.Revision < head {
		s.fail(fmt.Errorf("etcd was at revision %d, and now is at %d: it has lost data, or was restored from a backup", head, resp.Header.Revision))
		return 0, s.Failed()
	}
	return resp.Header.Revision, nil
}

// nudgeAfter is how long the replica may need to reach a revision by itself. Where the revision is
// of a change of what is not ours, etcd has to be asked to tell how far it is.
const nudgeAfter = 20 * time.Millisecond

// reach waits for the replica to reach a revision that etcd has reached.
func (s *Store) reach(ctx context.Context, revision int64) (*storage.Snapshot, error) {
	whole, cancel := context.WithTimeoutCause(ctx, s.options.Timeout, storage.ErrUnavailable)
	defer cancel()
	for {
		limited, cancel := context.WithTimeout(whole, nudgeAfter)
		snap, err := s.Wait(limited, revision)
		cancel()
		if err == nil || errors.Is(err, storage.ErrClosed) {
			return snap, err
		}
		if whole.Err() != nil {
			return nil, context.Cause(whole)
		}
		_ = s.client.RequestProgress(s.followed(whole)) // else the next one will
	}
}

// rounds ask one question for all who come while the one before is being answered. An
// answer is given to nobody who came after it was asked for.
type rounds struct {
	mu      sync.Mutex
	next    *round
	running bool
}

type round struct {
	done     chan struct{} // closed when it has been answered
	revision int64
	err      error
}

// join returns the answer to a question that has been asked after the call.
func (r *rounds) join(ctx context.Context, ask func() (int64, error)) (int64, error) {
	r.mu.Lock()
	if r.next == nil {
		r.next = &round{done: make(chan struct{})}
	}
	mine := r.next
	if !r.running {
		r.running = true
		go r.run(ask)
	}
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.revision, mine.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run asks until nobody waits.
func (r *rounds) run(ask func() (int64, error)) {
	for {
		r.mu.Lock()
		now := r.next
		r.next = nil
		r.running = now != nil
		r.mu.Unlock()
		if now == nil {
			return
		}
		now.revision, now.err = ask()
		close(now.done)
	}
}
