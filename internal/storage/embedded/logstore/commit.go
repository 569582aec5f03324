package logstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// request is one call of Commit.
type request struct {
	writes []storage.Write
	guards []storage.Guard
	taken  atomic.Bool // the committer has started the request, or the caller has withdrawn it
	done   chan struct{}
	events []*storage.Event // valid once done is closed
	err    error
}

// Commit implements storage.Store. Each write gets a separate revision.
func (s *Store) Commit(ctx context.Context, writes []storage.Write, guards ...storage.Guard) ([]*storage.Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := storage.Validate(writes); err != nil {
		return nil, err
	}
	r := &request{writes: writes, guards: guards, done: make(chan struct{})}
	if !s.queue.add(r) {
		return nil, storage.ErrClosed
	}
	return s.await(ctx, r)
}

// await waits for the result of r. If ctx ends or the commit times out, await withdraws r. A request that has
// started cannot be withdrawn. await then waits for its result until the timeout.
func (s *Store) await(ctx context.Context, r *request) ([]*storage.Event, error) {
	timeout := s.options.CommitTimeout()
	select {
	case <-r.done:
		return r.events, r.err
	case <-ctx.Done():
		if s.queue.withdraw(r) {
			return nil, ctx.Err()
		}
	case <-timeout:
		if s.queue.withdraw(r) {
			return nil, storage.ErrUnavailable
		}
		return nil, storage.ErrInDoubt
	}
	select {
	case <-r.done:
		return r.events, r.err
	case <-timeout:
		return nil, storage.ErrInDoubt
	}
}

// commitLoop commits groups of requests until the queue is closed and empty.
func (s *Store) commitLoop() {
	var group []*request
	for open := true; open; {
		<-s.queue.ready
		group, open = s.queue.take(group[:0])
		s.commitGroup(group)
		for _, r := range group {
			close(r.done)
		}
		clear(group)
	}
}

// commitGroup checks each request against the state after the requests before it. It writes all accepted requests
// with one Append and publishes them.
func (s *Store) commitGroup(group []*request) {
	d := s.Head().Draft()
	for _, r := range group {
		r.events, r.err = s.apply(d, r)
	}
	if len(d.Events) == 0 {
		s.TrimHistory()
		return
	}
	err := s.append(d.Events)
	if errors.Is(err, storage.ErrNoSpace) && len(group) > 1 { // some requests may fit, so try each separately
		for i := range group {
			s.commitGroup(group[i : i+1])
		}
		return
	}
	if err != nil {
		for _, r := range group { // replaces conflict errors too, as their cause may be a write of this group
			r.events, r.err = nil, err
		}
		return
	}
	s.Publish(d)
	s.account(d.Events)
}

// apply checks a request against the draft and, if all its writes and guards hold, applies it.
func (s *Store) apply(d *storage.Draft, r *request) ([]*storage.Event, error) {
	if err := d.Check(r.writes, r.guards); err != nil {
		return nil, err
	}
	first := len(d.Events)
	for i := range r.writes {
		w := &r.writes[i]
		var expires time.Time
		if w.TTL > 0 {
			expires = time.UnixMilli(s.options.Now().Add(w.TTL).UnixMilli()) // whole milliseconds, as they are stored
		}
		d.Write(w, d.Revision+1, expires)
	}
	return d.Events[first:len(d.Events):len(d.Events)], nil
}

// account updates the retention and the expiry queue, and triggers the compactor if the history is too large.
func (s *Store) account(events []*storage.Event) {
	var cost int64
	for _, e := range events {
		cost += e.HistoryCost()
		if e.Record != nil {
			s.expiry.add(e.Record)
		}
	}
	limit := s.options.HistoryBytes
	last := events[len(events)-1].Revision
	if s.retention.add(last, cost, s.options.Now(), limit); s.retention.excess(limit) {
		s.expiry.trigger()
	}
}

// Failed implements storage.Store.
func (s *Store) Failed() error {
	if p := s.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// append writes events to the log. The call in which the log fails permanently returns storage.ErrInDoubt, because
// its events may have been written. Later calls return storage.ErrFailed.
func (s *Store) append(events []*storage.Event) error {
	if err := s.Failed(); err != nil {
		return err
	}
	cause := s.log.Append(s.lifetime, events)
	if cause == nil || errors.Is(cause, storage.ErrNoSpace) || errors.Is(cause, storage.ErrUnavailable) {
		return cause
	}
	err := fmt.Errorf("%w: %w", storage.ErrFailed, cause)
	s.failed.Store(&err)
	s.options.Logger.Error("the storage log has failed: reads continue, but writes fail until the server is restarted",
		"err", cause)
	return fmt.Errorf("%w: %w", storage.ErrInDoubt, cause)
}
