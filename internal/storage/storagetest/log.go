// Package storagetest is for tests alone: what a storage.Store may stand on, at its worst.
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

// What Log refuses, as etcd does.
const (
	MaxWrites = 128
	MaxBytes  = 3 << 19
)

// Log is an ordered log in memory that many stores share. Its revisions have gaps, all writes of a commit share one,
// it grows where nothing of theirs has changed, and what it tells comes late, in pieces, and again.
type Log struct {
	// Loses says, for each commit, whether its answer is lost: before it is carried out, or after. May be nil.
	Loses func() (before, after bool)
	// Lazy lets stores hear of others' commits only when they ask what is newest, or commit something.
	Lazy bool

	mu      sync.Mutex
	grown   *sync.Cond
	random  *rand.Rand
	head    *storage.Snapshot
	entries []entry
	oldest  int64
	away    bool
}

// entry is one revision of a Log.
type entry struct {
	revision int64
	events   []*storage.Event
	writer   *Store
}

// NewLog returns an empty log whose faults are those of a seed.
func NewLog(seed uint64) *Log {
	l := &Log{random: rand.New(rand.NewPCG(seed, 9)), oldest: 1, head: new(storage.Loader).Snapshot(1)}
	l.grown = sync.NewCond(&l.mu)
	return l
}

// Store is a storage.Store over a Log.
type Store struct {
	*storage.Replica
	log     *Log
	closed  bool  // guarded by log.mu
	asked   int64 // the revision that it has asked for; likewise
	serving sync.WaitGroup
	once    sync.Once
}

// Open returns one more writer.
func (l *Log) Open() *Store {
	l.mu.Lock()
	defer l.mu.Unlock()
	// It remembers next to nothing, so that the past is asked often.
	s := &Store{log: l, Replica: storage.NewReplica(l.head, l.oldest, l, storage.ReplicaOptions{RecentBytes: 4 << 10})}
	next := len(l.entries)
	s.serving.Go(func() { s.feed(next) })
	return s
}

// Away makes the log unreachable, or reachable again.
func (l *Log) Away(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = away
	l.grown.Broadcast()
}

// feed tells the store of entries from next on: late, some again, and not always all that there are.
func (s *Store) feed(next int) {
	l := s.log
	for {
		l.mu.Lock()
		for (next == len(l.entries) || l.away || l.Lazy && s.Head().Revision() >= s.asked) && !s.closed {
			l.grown.Wait()
		}
		if s.closed {
			l.mu.Unlock()
			return
		}
		pause, from := l.random.IntN(4), max(0, next-l.random.IntN(3))
		next += 1 + l.random.IntN(len(l.entries)-next)
		told := l.entries[from:next]
		l.mu.Unlock()
		for range pause {
			runtime.Gosched()
		}
		var events []*storage.Event
		for _, e := range told {
			for _, ev := range e.events {
				events = append(events, received(ev, e.writer == s))
			}
		}
		s.Apply(events, told[len(told)-1].revision)
	}
}

// received is an event as another process sees it. Who wrote it knows what is derived from the value.
func received(e *storage.Event, own bool) *storage.Event {
	out := &storage.Event{Revision: e.Revision, Key: e.Key}
	if r := e.Record; r != nil {
		out.Record = &storage.Record{Key: r.Key, Value: r.Value, Created: r.Created, Modified: r.Modified, Expires: r.Expires}
		if known := r.Derived.Load(); known != nil && own {
			out.Record.Derived.Store(known)
		}
	}
	return out
}

// Commit is storage.Store's.
func (s *Store) Commit(ctx context.Context, writes []storage.Write, guards ...storage.Guard) ([]*storage.Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := storage.Validate(writes); err != nil {
		return nil, err
	}
	made, err := s.log.commit(s, writes, guards)
	if err != nil {
		return nil, err
	}
	now, err := s.Wait(context.WithoutCancel(ctx), made[0].Revision)
	if err != nil {
		return nil, err
	}
	events := make([]*storage.Event, len(made))
	for i, e := range made {
		events[i] = received(e, true)
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
	case l.away:
		return nil, storage.ErrUnavailable
	case len(writes) > MaxWrites || size(writes) > MaxBytes:
		return nil, fmt.Errorf("%w: %d writes of %d bytes", storage.ErrTooLarge, len(writes), size(writes))
	}
	s.asked = l.head.Revision()
	l.grown.Broadcast()
	d := l.head.Draft()
	if err := d.Check(writes, guards); err != nil {
		return nil, err
	}
	var before, after bool
	if l.Loses != nil {
		before, after = l.Loses()
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
	made := d.Events
	s.asked = revision
	l.append(entry{revision, made, s}, d)
	if l.random.IntN(4) == 0 { // something that is not theirs
		d := l.head.Draft()
		d.Revision += 1 + l.random.Int64N(3)
		l.append(entry{revision: d.Revision}, d)
	}
	if after {
		return nil, storage.ErrInDoubt
	}
	return made, nil
}

func size(writes []storage.Write) (n int) {
	for i := range writes {
		n += len(writes[i].Value)
	}
	return n
}

// append makes a draft the state. The caller holds mu.
func (l *Log) append(e entry, d *storage.Draft) {
	l.entries = append(l.entries, e)
	l.head = d.Snapshot()
	l.grown.Broadcast()
}

// Fresh is storage.Store's.
func (s *Store) Fresh(ctx context.Context) (*storage.Snapshot, error) {
	s.log.mu.Lock()
	revision, away := s.log.head.Revision(), s.log.away
	s.asked = revision
	s.log.grown.Broadcast()
	s.log.mu.Unlock()
	if away {
		return nil, storage.ErrUnavailable
	}
	return s.Wait(ctx, revision)
}

// Failed is storage.Store's: it never fails.
func (s *Store) Failed() error { return nil }

// Close is storage.Store's.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.log.mu.Lock()
		s.closed = true
		s.log.grown.Broadcast()
		s.log.mu.Unlock()
		s.serving.Wait()
		s.Replica.Close()
	})
	return nil
}

// Compact makes the log forget, which the stores find out when they ask it.
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

// Replay is storage.Past's, a few entries at a time.
func (l *Log) Replay(_ context.Context, prefix string, after, until int64) (events []*storage.Event, reached int64, err error) {
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
				out := received(ev, false)
				out.Previous = ev.Previous
				events = append(events, out)
			}
		}
	}
	return events, until, nil
}

// ReadAt is storage.Past's.
func (l *Log) ReadAt(_ context.Context, target int64, base *storage.Snapshot, put func(string, *storage.Record)) error {
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
