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

// Fresh implements storage.Store. It reads etcd's revision and waits until the replica has reached it.
func (s *Store) Fresh(ctx context.Context) (*storage.Snapshot, error) {
	if s.lifetime.Err() != nil {
		return nil, storage.ErrClosed
	}
	if err := s.Failed(); err != nil {
		return nil, err
	}
	revision, err := s.revisions.read(ctx, s.revision)
	if err != nil {
		return nil, err
	}
	return s.waitFor(ctx, revision)
}

// Wait implements storage.Store. The watch receives no event for a revision that changed only keys outside the prefix,
// so Wait also requests progress if etcd has the revision.
func (s *Store) Wait(ctx context.Context, revision int64) (*storage.Snapshot, error) {
	if snap, err := s.waitBriefly(ctx, revision); err == nil {
		return snap, nil
	}
	if current, err := s.revisions.read(ctx, s.revision); err == nil && current >= revision {
		return s.waitFor(ctx, revision)
	}
	return s.Replica.Wait(ctx, revision)
}

// revision returns etcd's current revision from a linearizable read.
func (s *Store) revision() (int64, error) {
	ctx, cancel := context.WithTimeout(s.lifetime, s.options.Timeout/4) // leaves time for a retry
	defer cancel()
	head := s.Head().Revision()
	resp, err := s.client.Get(ctx, s.options.Prefix, clientv3.WithKeysOnly())
	switch {
	case s.lifetime.Err() != nil:
		return 0, storage.ErrClosed
	case err != nil:
		return 0, unavailable(err)
	}
	err = s.checkCluster(resp.Header.ClusterId)
	if err == nil && resp.Header.Revision < head {
		err = replaced(fmt.Errorf("its revision has decreased from %d to %d", head, resp.Header.Revision))
	}
	if err != nil {
		s.fail(err)
		return 0, s.Failed()
	}
	return resp.Header.Revision, nil
}

// progressDelay is the time to wait for the replica before the store requests a progress report from etcd.
const progressDelay = 20 * time.Millisecond

// waitBriefly waits for progressDelay until the replica has reached a revision.
func (s *Store) waitBriefly(ctx context.Context, revision int64) (*storage.Snapshot, error) {
	limited, cancel := context.WithTimeout(ctx, progressDelay)
	defer cancel()
	return s.Replica.Wait(limited, revision)
}

// waitFor waits until the replica has reached a revision of etcd.
func (s *Store) waitFor(ctx context.Context, revision int64) (*storage.Snapshot, error) {
	if head := s.Head(); head.Revision() >= revision {
		return head, nil
	}
	whole, cancel := context.WithTimeoutCause(ctx, s.options.Timeout, storage.ErrUnavailable)
	defer cancel()
	defer s.expectResponse().Stop()
	for {
		snap, err := s.waitBriefly(whole, revision)
		if err == nil || errors.Is(err, storage.ErrClosed) {
			return snap, err
		}
		if whole.Err() != nil {
			return nil, context.Cause(whole)
		}
		_ = s.client.RequestProgress(s.watchContext(whole)) // if this request fails, the next iteration repeats it
	}
}

// readBatcher shares one read among all callers that arrive while the previous read is running. No caller gets the
// result of a read that started before its call.
type readBatcher struct {
	mu      sync.Mutex
	next    *readBatch
	running bool
}

type readBatch struct {
	done     chan struct{} // closed when revision and err are set
	revision int64
	err      error
}

// read returns the result of a read that starts after the call.
func (r *readBatcher) read(ctx context.Context, readRevision func() (int64, error)) (int64, error) {
	r.mu.Lock()
	if r.next == nil {
		r.next = &readBatch{done: make(chan struct{})}
	}
	mine := r.next
	if !r.running {
		r.running = true
		go r.run(readRevision)
	}
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.revision, mine.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run executes reads until no caller waits.
func (r *readBatcher) run(readRevision func() (int64, error)) {
	for {
		r.mu.Lock()
		batch := r.next
		r.next = nil
		r.running = batch != nil
		r.mu.Unlock()
		if batch == nil {
			return
		}
		batch.revision, batch.err = readRevision()
		close(batch.done)
	}
}
