// Package storagetest provides test fixtures for storage.Store: the Log, a faulty log that several stores share, a
// real etcd, and a check of linearizability. Only tests may import it.
package storagetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Limits of a commit, the same as etcd's.
const (
	MaxWrites = 128
	MaxBytes  = 3 << 19
)

// Log is an ordered log in memory that many stores share. Its revisions have gaps, and all writes of a commit share
// a revision. Some revisions contain no changes of the stores. It delivers entries late and in batches. It delivers
// some entries twice.
type Log struct {
	// LoseResponse determines for each commit whether its response is lost, before or after its execution. It may
	// be nil.
	LoseResponse func() (before, after bool)
	// NotifyOnRequest delivers the commits of other stores only when a store calls Fresh or Commit.
	NotifyOnRequest bool

	mu           sync.Mutex
	changed      *sync.Cond
	random       *rand.Rand
	head         *storage.Snapshot
	entries      []entry
	oldest       int64
	disconnected bool
}

// entry is one revision of a Log.
type entry struct {
	revision int64
	events   []*storage.Event
	writer   *Store
}

// NewLog returns an empty log. The seed determines its faults.
func NewLog(seed uint64) *Log {
	l := &Log{random: rand.New(rand.NewPCG(seed, 9)), oldest: 1, head: new(storage.Loader).Snapshot(1)}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// Store is a storage.Store over a Log.
type Store struct {
	*storage.Replica
	log       *Log
	closed    bool  // guarded by log.mu
	requested int64 // newest revision that a call of the store requires; guarded by log.mu
	serving   sync.WaitGroup
	closeOnce sync.Once
}

// Open returns another store over the log.
func (l *Log) Open() *Store {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The replica retains almost no history, so that it often reads from the log.
	s := &Store{log: l, Replica: storage.NewReplica(l.head, l.oldest, l, storage.ReplicaOptions{RecentBytes: 4 << 10})}
	next := len(l.entries)
	s.serving.Go(func() { s.deliver(next) })
	return s
}

// SetDisconnected makes the log unreachable, or reachable again.
func (l *Log) SetDisconnected(disconnected bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.disconnected = disconnected
	l.changed.Broadcast()
}

// deliver applies the entries of the log to the store, beginning at the given index. It applies them late and in
// batches of random size, and applies some of them twice.
func (s *Store) deliver(next int) {
	l := s.log
	for {
		l.mu.Lock()
		for (next == len(l.entries) || l.disconnected || l.NotifyOnRequest && s.Head().Revision() >= s.requested) &&
			!s.closed {
			l.changed.Wait()
		}
		if s.closed {
			l.mu.Unlock()
			return
		}
		pause, from := l.random.IntN(4), max(0, next-l.random.IntN(3))
		next += 1 + l.random.IntN(len(l.entries)-next)
		batch := l.entries[from:next]
		l.mu.Unlock()
		for range pause {
			runtime.Gosched()
		}
		var events []*storage.Event
		for _, e := range batch {
			for _, ev := range e.events {
				events = append(events, receivedEvent(ev, e.writer == s))
			}
		}
		s.Apply(events, batch[len(batch)-1].revision)
	}
}

// receivedEvent returns a copy of an event, as another process would decode it. It copies the derived data only if
// own is set.
func receivedEvent(e *storage.Event, own bool) *storage.Event {
	out := &storage.Event{Revision: e.Revision, Key: e.Key}
	if r := e.Record; r != nil {
		out.Record = &storage.Record{
			Key: r.Key, Value: r.Value, Created: r.Created, Modified: r.Modified, Expires: r.Expires,
		}
		if known := r.Derived.Load(); known != nil && own {
			out.Record.Derived.Store(known)
		}
	}
	return out
}

// Commit implements storage.Store.
func (s *Store) Commit(ctx context.Context, writes []storage.Write, guards ...storage.Guard) ([]*storage.Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := storage.Validate(writes); err != nil {
		return nil, err
	}
	committed, err := s.log.commit(s, writes, guards)
	if err != nil {
		return nil, err
	}
	now, err := s.Wait(context.WithoutCancel(ctx), committed[0].Revision)
	if err != nil {
		return nil, err
	}
	events := make([]*storage.Event, len(committed))
	for i, e := range committed {
		events[i] = receivedEvent(e, true)
		events[i].Previous = e.Previous
		if r := now.Get(e.Key); r != nil && r.Modified == e.Revision {
			events[i].Record = r
		}
	}
	return events, nil
}

func (l *Log) commit(s *Store, writes []storage.Write, guards []storage.Guard) ([]*storage.Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case s.closed:
		return nil, storage.ErrClosed
	case l.disconnected:
		return nil, storage.ErrUnavailable
	case len(writes) > MaxWrites || size(writes) > MaxBytes:
		return nil, fmt.Errorf("%w: %d writes of %d bytes", storage.ErrTooLarge, len(writes), size(writes))
	}
	s.requested = l.head.Revision()
	l.changed.Broadcast()
	d := l.head.Draft()
	if err := d.Check(writes, guards); err != nil {
		return nil, err
	}
	var before, after bool
	if l.LoseResponse != nil {
		before, after = l.LoseResponse()
	}
	if before {
		return nil, storage.ErrInDoubt
	}
	revision := d.Revision + 1 + l.random.Int64N(3)
	for i := range writes {
		var expires time.Time
		if writes[i].TTL > 0 {
			expires = time.Now().Add(writes[i].TTL)
		}
		d.Write(&writes[i], revision, expires)
	}
	committed := d.Events
	s.requested = revision
	l.append(entry{revision, committed, s}, d)
	if l.random.IntN(4) == 0 { // add a revision without changes of the stores
		d := l.head.Draft()
		d.Revision += 1 + l.random.Int64N(3)
		l.append(entry{revision: d.Revision}, d)
	}
	if after {
		return nil, storage.ErrInDoubt
	}
	return committed, nil
}

func size(writes []storage.Write) (n int) {
	for i := range writes {
		n += len(writes[i].Value)
	}
	return n
}

// append makes a draft the head. The caller holds mu.
func (l *Log) append(e entry, d *storage.Draft) {
	l.entries = append(l.entries, e)
	l.head = d.Snapshot()
	l.changed.Broadcast()
}

// Fresh implements storage.Store.
func (s *Store) Fresh(ctx context.Context) (*storage.Snapshot, error) {
	s.log.mu.Lock()
	revision, disconnected := s.log.head.Revision(), s.log.disconnected
	s.requested = revision
	s.log.changed.Broadcast()
	s.log.mu.Unlock()
	if disconnected {
		return nil, storage.ErrUnavailable
	}
	return s.Wait(ctx, revision)
}

// Failed implements storage.Store. It always returns nil.
func (s *Store) Failed() error { return nil }

// Close implements storage.Store.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.log.mu.Lock()
		s.closed = true
		s.log.changed.Broadcast()
		s.log.mu.Unlock()
		s.serving.Wait()
		s.Replica.Close()
	})
	return nil
}

// Compact makes the log drop its history before revision. Other stores notice this when they read from the log.
func (s *Store) Compact(_ context.Context, revision int64) error {
	if err := s.DropHistory(revision); err != nil {
		return err
	}
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.oldest = max(s.log.oldest, revision)
	return nil
}

// between returns the entries in (after, until].
func (l *Log) between(after, until int64) (found []entry, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if after < l.oldest {
		return nil, &storage.CompactedError{Requested: after, Oldest: l.oldest}
	}
	for _, e := range l.entries {
		if e.revision > after && e.revision <= until {
			found = append(found, e)
		}
	}
	return found, nil
}

// Replay implements storage.HistoryReader. It returns few entries per call.
func (l *Log) Replay(
	_ context.Context, prefix string, after, until int64,
) (events []*storage.Event, reached int64, err error) {
	entries, err := l.between(after, until)
	if err != nil {
		return nil, after, err
	}
	for i, e := range entries {
		if i == 5 {
			return events, entries[i-1].revision, nil
		}
		for _, ev := range e.events {
			if strings.HasPrefix(ev.Key, prefix) {
				out := receivedEvent(ev, false)
				out.Previous = ev.Previous
				events = append(events, out)
			}
		}
	}
	return events, until, nil
}

// ReadAt implements storage.HistoryReader.
func (l *Log) ReadAt(
	_ context.Context, target int64, base *storage.Snapshot, put func(string, *storage.Record),
) error {
	entries, err := l.between(target, base.Revision())
	seen := map[string]bool{}
	for _, e := range entries {
		for _, ev := range e.events {
			if !seen[ev.Key] {
				seen[ev.Key] = true
				put(ev.Key, ev.Previous)
			}
		}
	}
	return err
}
