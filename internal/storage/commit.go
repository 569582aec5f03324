package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage/tree"
)

// request is one Commit on its way through the committer.
type request struct {
	writes []Write
	guards []Guard
	taken  atomic.Bool // by the committer, or withdrawn by the caller
	done   chan struct{}
	events []*Event // valid once done is closed
	err    error
}

// Commit applies all writes or none, each with a revision of its own, and returns
// their events once they are durable and visible in Head, in the order of the writes.
// The error is a *ConflictError if a write or guard does not hold, wraps ErrInvalid,
// ErrNoSpace, ErrUnavailable or ErrFailed, or is ctx's: then nothing was written. A commit
// that the committer has taken up is waited for, whatever becomes of ctx, until patience
// has run out: ErrInDoubt.
func (s *Store) Commit(ctx context.Context, writes []Write, guards ...Guard) ([]*Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := validate(writes); err != nil {
		return nil, err
	}
	r := &request{writes: writes, guards: guards, done: make(chan struct{})}
	if !s.queue.add(r) {
		return nil, ErrClosed
	}
	return s.await(ctx, r)
}

// await returns what becomes of r.
func (s *Store) await(ctx context.Context, r *request) ([]*Event, error) {
	patience := s.options.Patience()
	select {
	case <-r.done:
		return r.events, r.err
	case <-ctx.Done():
		if r.taken.CompareAndSwap(false, true) {
			return nil, ctx.Err()
		}
	case <-patience:
		if r.taken.CompareAndSwap(false, true) {
			return nil, ErrUnavailable
		}
		return nil, ErrInDoubt
	}
	select {
	case <-r.done:
		return r.events, r.err
	case <-patience:
		return nil, ErrInDoubt
	}
}

// validate refuses what no state could accept.
func validate(writes []Write) error {
	if len(writes) == 0 {
		return fmt.Errorf("%w: nothing to write", ErrInvalid)
	}
	for i := range writes {
		w := &writes[i]
		switch {
		case w.Key == "":
			return fmt.Errorf("%w: empty key", ErrInvalid)
		case len(w.Key) > MaxKey:
			return fmt.Errorf("%w: key of %d bytes", ErrInvalid, len(w.Key))
		case strings.IndexByte(w.Key, 0) >= 0:
			return fmt.Errorf("%w: key %q holds a NUL byte", ErrInvalid, w.Key)
		case w.Value == nil && w.Expected == 0:
			return fmt.Errorf("%w: %s is to be deleted and expected not to exist", ErrInvalid, w.Key)
		}
		for j := range i {
			if writes[j].Key == w.Key {
				return fmt.Errorf("%w: %s is written twice", ErrInvalid, w.Key)
			}
		}
	}
	return nil
}

// queue holds the commits that wait for the committer.
type queue struct {
	mu      sync.Mutex
	waiting []*request
	closed  bool
	ready   chan struct{} // has room for one: something waits, or the queue is closed
}

func (q *queue) init() { q.ready = make(chan struct{}, 1) }

// add queues requests and says whether the queue is open.
func (q *queue) add(rs ...*request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.waiting = append(q.waiting, rs...)
	poke(q.ready)
	return true
}

// groupRequests and groupBytes bound what is written at once, so that a flood
// neither builds one huge batch nor makes the first in it wait for the last.
const (
	groupRequests = 1024
	groupBytes    = 4 << 20
)

// take fills group with what waits, in order, and says whether more may come.
func (q *queue) take(group []*request) (_ []*request, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes := 0, 0
	for n < len(q.waiting) && len(group) < groupRequests && bytes < groupBytes {
		r := q.waiting[n]
		n++
		if !r.taken.CompareAndSwap(false, true) {
			continue // withdrawn
		}
		for i := range r.writes {
			bytes += len(r.writes[i].Value)
		}
		group = append(group, r)
	}
	left := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[left:])
	q.waiting = q.waiting[:left]
	if left > 0 {
		poke(q.ready)
	}
	return group, !q.closed || left > 0
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	poke(q.ready)
}

// poke makes sure that c, which has room for one, holds something.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
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
	head := s.Head()
	g := pending{edit: head.tree.Edit(), revision: head.revision, now: s.options.Now}
	for _, r := range group {
		r.err = g.apply(r)
	}
	if len(g.events) == 0 {
		s.history.shrink(s.options.RecentBytes, s.hub.published.Load())
		return
	}
	err := s.append(g.events)
	if errors.Is(err, ErrNoSpace) && len(group) > 1 { // for some of them there may be room
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
	next := &Snapshot{tree: g.edit.Tree(), revision: g.revision}
	s.history.publish(next, g.events, s.options.RecentBytes, s.hub.published.Load())
	s.waiters.wake(g.revision)
	s.hub.signal()
	s.account(g.events)
}

// account tells the janitor about new events.
func (s *Store) account(events []*Event) {
	var cost int64
	for _, e := range events {
		cost += e.HistoryCost()
		if e.Record != nil {
			s.expiry.add(e.Record)
		}
	}
	limit := s.options.HistoryBytes
	last := events[len(events)-1].Revision
	if s.history.retention.add(last, cost, s.options.Now(), limit); s.history.retention.excess(limit) {
		s.expiry.poke()
	}
}

// Failed is why nothing can be written any more, an ErrFailed, and nil as long as writes go on.
func (s *Store) Failed() error {
	if p := s.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// append writes to the log unless it has failed for good before.
func (s *Store) append(events []*Event) error {
	if err := s.Failed(); err != nil {
		return err
	}
	cause := s.log.Append(s.lifetime, events)
	if cause == nil || errors.Is(cause, ErrNoSpace) || errors.Is(cause, ErrUnavailable) {
		return cause
	}
	err := fmt.Errorf("%w: %w", ErrFailed, cause)
	s.failed.Store(&err)
	s.options.Logger.Error("the storage log has failed; reads go on, writes do not", "err", cause)
	return err
}

// pending is the state that a group builds up.
type pending struct {
	edit     *tree.Editor[*Record]
	revision int64
	now      func() time.Time
	events   []*Event
}

// apply checks a request and, if it holds, carries it out.
func (g *pending) apply(r *request) error {
	for i := range r.guards {
		if err := g.guard(&r.guards[i]); err != nil {
			return err
		}
	}
	for i := range r.writes {
		w := &r.writes[i]
		current, _ := g.edit.Get(w.Key)
		if modified(current) != w.Expected {
			return &ConflictError{Key: w.Key, Current: current}
		}
	}
	first := len(g.events)
	for i := range r.writes {
		g.write(&r.writes[i])
	}
	r.events = g.events[first:len(g.events):len(g.events)]
	return nil
}

func (g *pending) guard(c *Guard) error {
	if c.Prefix {
		if newest, revision := g.edit.Newest(c.Key); revision > c.Revision {
			return &ConflictError{Key: c.Key, Guard: true, Current: newest}
		}
		return nil
	}
	current, _ := g.edit.Get(c.Key)
	if modified(current) != c.Revision {
		return &ConflictError{Key: c.Key, Guard: true, Current: current}
	}
	return nil
}

// write carries out a write that has been checked.
func (g *pending) write(w *Write) {
	g.revision++
	previous, _ := g.edit.Get(w.Key)
	e := &Event{Revision: g.revision, Key: w.Key, Previous: previous}
	g.events = append(g.events, e)
	if w.Value == nil {
		g.edit.Delete(w.Key)
		return
	}
	e.Record = &Record{Key: w.Key, Value: w.Value, Created: g.revision, Modified: g.revision}
	if previous != nil {
		e.Record.Created = previous.Created
	}
	if w.TTL > 0 {
		// Whole milliseconds, as they are stored.
		e.Record.Expires = time.UnixMilli(g.now().Add(w.TTL).UnixMilli())
	}
	if w.Derived != nil {
		e.Record.Derived.Store(w.Derived)
	}
	g.edit.Put(w.Key, g.revision, e.Record)
}

// modified is the revision of r, 0 for nil.
func modified(r *Record) int64 {
	if r == nil {
		return 0
	}
	return r.Modified
}
