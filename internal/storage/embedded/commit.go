package embedded

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// request is one Commit on its way through the committer.
type request struct {
	writes []storage.Write
	guards []storage.Guard
	taken  atomic.Bool // by the committer, or withdrawn by the caller
	done   chan struct{}
	events []*storage.Event // valid once done is closed
	err    error
}

// Commit is storage.Store's; each write has a revision of its own.
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

// await returns what becomes of r.
func (s *Store) await(ctx context.Context, r *request) ([]*storage.Event, error) {
	patience := s.options.patience()
	select {
	case <-r.done:
		return r.events, r.err
	case <-ctx.Done():
		if s.queue.withdraw(r) {
			return nil, ctx.Err()
		}
	case <-patience:
		if s.queue.withdraw(r) {
			return nil, storage.ErrUnavailable
		}
		return nil, storage.ErrInDoubt
	}
	select {
	case <-r.done:
		return r.events, r.err
	case <-patience:
		return nil, storage.ErrInDoubt
	}
}

// commitLoop writes group after group until the queue is closed and empty.
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

// commitGroup decides on each request in order against the state that those
// before it leave, writes what holds with one Append, and publishes it.
func (s *Store) commitGroup(group []*request) {
	d := s.Head().Draft()
	for _, r := range group {
		r.events, r.err = s.decide(d, r)
	}
	if len(d.Events) == 0 {
		s.TrimHistory()
		return
	}
	err := s.append(d.Events)
	if errors.Is(err, storage.ErrNoSpace) && len(group) > 1 { // for some of them there may be room
		for i := range group {
			s.commitGroup(group[i : i+1])
		}
		return
	}
	if err != nil {
		for _, r := range group { // a conflict, too, may be with what was not written
			r.events, r.err = nil, err
		}
		return
	}
	s.Publish(d)
	s.account(d.Events)
}

// decide checks a request against the state that those before it leave and, if it holds, carries it out.
func (s *Store) decide(d *storage.Draft, r *request) ([]*storage.Event, error) {
	if err := d.Check(r.writes, r.guards); err != nil {
		return nil, err
	}
	first := len(d.Events)
	for i := range r.writes {
		w := &r.writes[i]
		var expires time.Time
		if w.TTL > 0 {
			expires = time.UnixMilli(s.options.now().Add(w.TTL).UnixMilli()) // whole milliseconds, as they are stored
		}
		d.Write(w, d.Revision+1, expires)
	}
	return d.Events[first:len(d.Events):len(d.Events)], nil
}

// account tells the janitor about new events.
func (s *Store) account(events []*storage.Event) {
	var cost int64
	for _, e := range events {
		cost += e.HistoryCost()
		if e.Record != nil {
			s.expiry.add(e.Record)
		}
	}
	limit := s.options.historyBytes
	last := events[len(events)-1].Revision
	if s.retention.add(last, cost, s.options.now(), limit); s.retention.excess(limit) {
		s.expiry.poke()
	}
}

// Failed is why nothing can be written any more, an storage.ErrFailed, and nil as long as writes go on.
func (s *Store) Failed() error {
	if p := s.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// append writes to the log unless it has failed for good before. Of events that it was given when it failed nobody knows
// what became: storage.ErrInDoubt.
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
	s.options.logger.Error("the storage log has failed; reads go on, writes do not", "err", cause)
	return fmt.Errorf("%w: %w", storage.ErrInDoubt, cause)
}
