package embedded

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// clock is a fake clock.
type clock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[chan time.Time]time.Time
	added  *sync.Cond // signals a new element of timers
}

func newClock() *clock {
	c := &clock{now: time.UnixMilli(1e12), timers: map[chan time.Time]time.Time{}}
	c.added = sync.NewCond(&c.mu)
	return c
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := make(chan time.Time, 1)
	c.timers[timer] = c.now.Add(d)
	c.fire()
	c.added.Broadcast()
	return timer
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.fire()
}

func (c *clock) fire() {
	for timer, at := range c.timers {
		if !at.After(c.now) {
			timer <- c.now
			delete(c.timers, timer)
		}
	}
}

// tick waits until a timer is set, and then advances the clock.
func (c *clock) tick(d time.Duration) {
	c.mu.Lock()
	for len(c.timers) == 0 {
		c.added.Wait()
	}
	c.mu.Unlock()
	c.advance(d)
}

// TestConflict checks that a write with an outdated Expected changes nothing and returns the stored record
// (CRD-053).
func TestConflict(t *testing.T) {
	each(t, Options{}, func(t *testing.T, s *logstore.Store) {
		first := put(t, s, "a/x", "1")
		for _, expected := range []int64{0, first.Revision + 1} {
			_, err := s.Commit(context.Background(), []storage.Write{
				{Key: "a/y", Value: []byte("1")},
				{Key: "a/x", Value: []byte("2"), Expected: expected},
			})
			var conflict *storage.ConflictError
			if !errors.As(err, &conflict) || conflict.Guard || conflict.Key != "a/x" ||
				show(conflict.Current) != "a/x=1@2/2" {
				t.Errorf("Expected %d: got %v", expected, err)
			}
		}
		want(t, list(s.Head(), "", ""), "a/x=1@2/2") // all or nothing
		if s.Head().Revision() != 2 {
			t.Error("a failed commit has used up a revision")
		}
	})
}

// TestGuards checks that a commit fails if a key or prefix in its guards has changed.
func TestGuards(t *testing.T) {
	each(t, Options{}, func(t *testing.T, s *logstore.Store) {
		put(t, s, "ns/a", "1")  // 2
		put(t, s, "p/x/1", "1") // 3
		put(t, s, "p/y/1", "1") // 4
		try := func(g storage.Guard) error {
			w := storage.Write{Key: "o", Value: []byte("1"), Expected: revisionOf(s, "o")}
			_, err := s.Commit(context.Background(), []storage.Write{w}, g)
			return err
		}
		for _, g := range []storage.Guard{
			{Key: "ns/a", Revision: 2}, {Key: "ns/b"}, {Key: "p/x/", Prefix: true, Revision: 3},
			{Key: "p/", Prefix: true, Revision: 4}, {Key: "q/", Prefix: true},
		} {
			if err := try(g); err != nil {
				t.Errorf("%+v: %v", g, err)
			}
		}
		for _, g := range []storage.Guard{
			{Key: "ns/a", Revision: 1}, {Key: "ns/a"}, {Key: "ns/b", Revision: 2},
			{Key: "p/", Prefix: true, Revision: 3},
		} {
			var conflict *storage.ConflictError
			if err := try(g); !errors.As(err, &conflict) || !conflict.Guard || conflict.Key != g.Key {
				t.Errorf("%+v: %v", g, err)
			}
		}
	})
}

func revisionOf(s *logstore.Store, key string) int64 {
	if r := s.Head().Get(key); r != nil {
		return r.Modified
	}
	return 0
}

// TestInvalidCommits checks that invalid commits are rejected and change nothing.
func TestInvalidCommits(t *testing.T) {
	each(t, Options{}, func(t *testing.T, s *logstore.Store) {
		for name, writes := range map[string][]storage.Write{
			"nothing":  nil,
			"no key":   {{Value: []byte("1")}},
			"NUL":      {{Key: "a\x00b", Value: []byte("1")}},
			"long key": {{Key: string(make([]byte, storage.MaxKey+1)), Value: []byte("1")}},
			"absent":   {{Key: "a"}},
			"twice":    {{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("2")}},
		} {
			if _, err := s.Commit(context.Background(), writes); !errors.Is(err, storage.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if s.Head().Revision() != 1 {
			t.Error("something was written")
		}
	})
}

// TestExpiry checks that records are deleted when their time to live has passed (--event-ttl). Each deletion is a
// commit with an event.
func TestExpiry(t *testing.T) {
	c := newClock()
	each(t, Options{Now: c.Now, After: c.After}, func(t *testing.T, s *logstore.Store) {
		commit(t, s, storage.Write{Key: "e/1", Value: []byte("1"), TTL: time.Minute})
		commit(t, s, storage.Write{Key: "e/2", Value: []byte("1"), TTL: time.Minute})
		commit(t, s, storage.Write{Key: "e/2", Value: []byte("2"), TTL: time.Hour})
		commit(t, s, storage.Write{Key: "e/3", Value: []byte("1")})
		w, err := s.Watch(context.Background(), "e/", s.Head().Revision())
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		c.advance(time.Minute)
		want(t, next(t, w, 1), "6 e/1 -<-e/1=1@2/2")
		want(t, list(s.Head(), "", ""), "e/2=2@3/4", "e/3=1@5/5")
		c.advance(time.Hour)
		want(t, next(t, w, 1), "7 e/2 -<-e/2=2@3/4")
	})
}

// TestExpirySurvivesRestart checks that a store deletes records that expired before it was opened.
func TestExpirySurvivesRestart(t *testing.T) {
	c := newClock()
	o := Options{Dir: t.TempDir(), Now: c.Now, After: c.After}
	s := open(t, o)
	commit(t, s, storage.Write{Key: "e/1", Value: []byte("1"), TTL: time.Minute})
	s.Close()
	c.advance(time.Hour)
	s = open(t, o)
	if _, err := s.Wait(context.Background(), 3); err != nil {
		t.Fatal(err)
	}
	want(t, list(s.Head(), "", ""))
}

// TestCompact checks that compacted revisions cannot be read and that later ones are unchanged (CRD-062).
func TestCompact(t *testing.T) {
	each(t, Options{recentBytes: 1}, func(t *testing.T, s *logstore.Store) {
		for i := range 20 {
			put(t, s, fmt.Sprintf("k/%d", i%3), fmt.Sprint(i))
		}
		remove(t, s, "k/0")   // 22
		put(t, s, "k/0", "n") // 23
		before, err := s.At(context.Background(), 10)
		if err != nil {
			t.Fatal(err)
		}
		was := list(before, "", "")
		if err := s.Compact(context.Background(), 10); err != nil {
			t.Fatal(err)
		}
		var compacted *storage.CompactedError
		if _, err := s.At(context.Background(), 9); !errors.As(err, &compacted) || compacted.Oldest != 10 {
			t.Errorf("At(9): %v", err)
		}
		if _, err := s.Watch(context.Background(), "", 9); !errors.As(err, &compacted) {
			t.Errorf("Watch after 9: %v", err)
		}
		after, err := s.At(context.Background(), 10)
		if err != nil {
			t.Fatal(err)
		}
		want(t, list(after, "", ""), was...)
		events, err := history(s, 10)
		if err != nil || len(events) != 13 || showEvent(events[0]) != "11 k/0 k/0=9@2/11<-k/0=6@2/8" {
			t.Errorf("%d events, %v", len(events), err)
		}
		if err := s.Compact(context.Background(), 22); err != nil {
			t.Fatal(err)
		}
		old, err := s.At(context.Background(), 22)
		if err != nil {
			t.Fatal(err)
		}
		want(t, list(old, "k/0", ""))
		var future *storage.FutureError
		if err := s.Compact(context.Background(), 99); !errors.As(err, &future) {
			t.Errorf("Compact(99): %v", err)
		}
	})
}

// TestHistoryIsBounded checks that history is compacted when it is older than CompactAfter or exceeds HistoryBytes.
func TestHistoryIsBounded(t *testing.T) {
	c := newClock()
	o := Options{Now: c.Now, After: c.After, CompactAfter: time.Hour, HistoryBytes: 1 << 20}
	each(t, o, func(t *testing.T, s *logstore.Store) {
		put(t, s, "a", "1")
		var compacted *storage.CompactedError
		gone := func(why string, step func()) {
			for range 50 {
				if _, err := s.At(context.Background(), 2); errors.As(err, &compacted) {
					return
				}
				step()
			}
			t.Error(why)
		}
		put(t, s, "a", "2")
		put(t, s, "a", "3")
		gone("history older than CompactAfter is not compacted", func() { c.tick(10 * time.Minute) })
		put(t, s, "b", "4")
		start := s.Head().Revision()
		big := string(make([]byte, 10000))
		for range 1000 {
			put(t, s, "b", big)
			if _, err := s.At(context.Background(), start); errors.As(err, &compacted) {
				return
			}
		}
		t.Error("history larger than HistoryBytes is not compacted")
	})
}

// TestLaggingCursor checks that a cursor that is not read ends with ErrLagging and does not delay the store or other
// cursors (CRD-062).
func TestLaggingCursor(t *testing.T) {
	s, err := logstore.New(newMemory(), logstore.Options{ReplicaOptions: storage.ReplicaOptions{LagEvents: 100}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	slow, _ := s.Watch(context.Background(), "a/", 1)
	fast, _ := s.Watch(context.Background(), "a/", 1)
	defer slow.Close()
	defer fast.Close()
	for i := range 300 {
		put(t, s, "a/x", fmt.Sprint(i))
		if got := next(t, fast, 1); len(got) != 1 {
			t.Fatalf("the fast cursor got %v", got)
		}
	}
	if _, _, err := slow.Take(nil); !errors.Is(err, storage.ErrLagging) {
		t.Errorf("the slow cursor got %v, want ErrLagging", err)
	}
}

// TestProgress checks that changes outside a cursor's prefix advance its progress without a signal on Ready
// (CRD-063).
func TestProgress(t *testing.T) {
	each(t, Options{}, func(t *testing.T, s *logstore.Store) {
		c, err := s.Watch(context.Background(), "a/", 1)
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.Watch(context.Background(), "", 1)
		if err != nil {
			t.Fatal(err)
		}
		<-c.Ready()
		if _, progress, _ := c.Take(nil); progress != 1 {
			t.Errorf("got progress %d", progress)
		}
		put(t, s, "b/x", "1")
		next(t, all, 1)
		select {
		case <-c.Ready():
			t.Error("a change below another prefix signals Ready")
		default:
		}
		if _, progress, _ := c.Take(nil); progress != 2 {
			t.Errorf("got progress %d", progress)
		}
		s.Close()
		<-c.Ready()
		if _, _, err := c.Take(nil); !errors.Is(err, storage.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		_, err = s.Commit(context.Background(), []storage.Write{{Key: "a", Value: []byte("1")}})
		if !errors.Is(err, storage.ErrClosed) {
			t.Errorf("Commit after Close: %v", err)
		}
	})
}

// TestRandomAgainstModel compares random operations with a simple model, in memory and on disk. Cursors of any
// prefix and start deliver exactly the events of the history, in order. The snapshot of any revision results from
// all events up to that revision (CRD-061 CRD-062).
func TestRandomAgainstModel(t *testing.T) {
	for seed := range uint64(12) {
		each(t, Options{recentBytes: 6 << 10, memTable: 64 << 10}, func(t *testing.T, s *logstore.Store) {
			r := rand.New(rand.NewPCG(seed, 6))
			var log []string                  // rendered events; log[i] has revision i+2
			var keys []string                 // their keys
			states := []map[string]string{{}} // rendered records by key, indexed by revision-1
			oldest := int64(1)
			for range 300 {
				switch r.IntN(12) {
				case 0:
					checkState(t, s, states, oldest, r)
				case 1:
					checkWatch(t, s, log, keys, oldest, r)
				case 2:
					if r.IntN(6) == 0 {
						oldest += r.Int64N(int64(len(states)) - oldest + 1)
						if err := s.Compact(context.Background(), oldest); err != nil {
							t.Fatal(err)
						}
					}
				default:
					key := fmt.Sprintf("%c/%c/%d", 'a'+rune(r.IntN(2)), 'a'+rune(r.IntN(2)), r.IntN(12))
					var e *storage.Event
					if s.Head().Get(key) != nil && r.IntN(3) == 0 {
						e = remove(t, s, key)
					} else {
						e = put(t, s, key, fmt.Sprint(r.IntN(1000)))
					}
					log, keys = append(log, showEvent(e)), append(keys, key)
					now := map[string]string{}
					for k, v := range states[len(states)-1] {
						now[k] = v
					}
					if now[key] = show(e.Record); e.Record == nil {
						delete(now, key)
					}
					states = append(states, now)
				}
			}
		})
	}
}

var prefixes = []string{"", "a/", "a/b/", "b/a/1", "a", "c/", "a/a/11"}

func checkState(t *testing.T, s *logstore.Store, states []map[string]string, oldest int64, r *rand.Rand) {
	t.Helper()
	revision := oldest + r.Int64N(int64(len(states))-oldest+1)
	snapshot, err := s.At(context.Background(), revision)
	if err != nil {
		t.Fatal(err)
	}
	prefix := prefixes[r.IntN(len(prefixes))]
	var expect []string
	for k, v := range states[revision-1] {
		if len(k) >= len(prefix) && k[:len(prefix)] == prefix {
			expect = append(expect, v)
		}
	}
	slices.SortFunc(expect, func(a, b string) int { // compare only the keys, because "=" sorts after digits
		return slices.Compare(slices.Collect(keyOf(a)), slices.Collect(keyOf(b)))
	})
	want(t, list(snapshot, prefix, ""), expect...)
	if snapshot.Count(prefix, "") != len(expect) || snapshot.Revision() != revision {
		t.Errorf("Count is %d at %d, want %d at %d",
			snapshot.Count(prefix, ""), snapshot.Revision(), len(expect), revision)
	}
}

// keyOf yields the bytes of a rendered record's key.
func keyOf(s string) func(func(byte) bool) {
	return func(yield func(byte) bool) {
		for i := 0; s[i] != '=' && yield(s[i]); i++ {
		}
	}
}

func checkWatch(t *testing.T, s *logstore.Store, log, keys []string, oldest int64, r *rand.Rand) {
	t.Helper()
	after := oldest + r.Int64N(int64(len(log))+1-oldest+1)
	prefix := prefixes[r.IntN(len(prefixes))]
	c, err := s.Watch(context.Background(), prefix, after)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var expect []string
	for i := after - 1; i < int64(len(log)); i++ {
		if k := keys[i]; len(k) >= len(prefix) && k[:len(prefix)] == prefix {
			expect = append(expect, log[i])
		}
	}
	var got []string
	for progress := int64(0); progress < s.Head().Revision(); {
		events, p, err := c.Take(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			got = append(got, showEvent(e))
		}
		progress = p
	}
	want(t, got, expect...)
}

// TestCompactedHistoryIsReleased checks that compacted history becomes garbage even if there are no further writes.
func TestCompactedHistoryIsReleased(t *testing.T) {
	c := newClock()
	each(t, Options{Now: c.Now, After: c.After}, func(t *testing.T, s *logstore.Store) {
		put(t, s, "a", "1")
		old := weak.Make(s.Head().Get("a"))
		remove(t, s, "a")
		for old.Value() != nil {
			c.tick(time.Minute)
			runtime.GC()
		}
	})
}
