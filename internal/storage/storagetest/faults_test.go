package storagetest

// The tests below check on all stores for faults that etcd has had since 2022 or that Jepsen has looked for. The table
// in internal/storage/etcd/faults_test.go lists the faults of etcd from which a client must protect itself.
//
//	etcd#13766 #14370 #17780    history changes after a crash           testRestart
//	etcd#18089 #19179           deletion omitted after a compaction     testCompactedDeletion
//	etcd#17529                  events omitted when a watch is slow     testSlowCursor
//	etcd#15220 #15271 #17247    order, repetition and progress          testOrder
//	etcd#18667                  reads during compactions                testCompactionRace
//	etcd#20221                  watch of a future revision              testStates, testLateStore
//	etcd#20418 #14140, Jepsen   stale reads, lost updates               testFresh, testLinearizable
//	etcd#14890 #18424           commits executed twice                  testRepeatedCommit
//	none                        keys deleted before their time          testTTLRemoved

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

func init() {
	for name, test := range map[string]func(t *testing.T, p backend){
		"restart":            testRestart,
		"compacted deletion": testCompactedDeletion,
		"slow cursor":        testSlowCursor,
		"order":              testOrder,
		"compaction race":    testCompactionRace,
		"late store":         testLateStore,
		"repeated commit":    testRepeatedCommit,
		"TTL removed":        testTTLRemoved,
	} {
		suite[name] = test
	}
}

func compact(t *testing.T, s storage.Store, revision int64) {
	t.Helper()
	type compactor interface {
		Compact(ctx context.Context, revision int64) error
	}
	if err := s.(compactor).Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
}

// testRestart checks that revisions and history are the same after a crash, also if the newest revision is a deletion
// and has been compacted, which has decreased etcd's revision (etcd#17780).
func testRestart(t *testing.T, p backend) {
	if p.crash == nil {
		return // the store does not survive a crash
	}
	s := p.open(t)
	var m model
	for i := range 12 {
		m.add(put(t, s, fmt.Sprintf("k/%d", i%3), fmt.Sprint(i)))
	}
	m.add(remove(t, s, "k/0"), remove(t, s, "k/1"))
	for _, compaction := range []int64{0, m.events[6].Revision, m.events[len(m.events)-1].Revision} {
		if compaction > 0 {
			compact(t, s, compaction)
		}
		newest := m.events[len(m.events)-1].Revision
		p.crash(t)
		s = p.open(t)
		head, err := s.Fresh(t.Context())
		if err != nil || head.Revision() < newest {
			t.Fatalf("after the restart, the head is at revision %d, want %d, %v", head.Revision(), newest, err)
		}
		want(t, list(head, ""), m.state(newest, "")...)
		from := max(compaction, m.events[0].Revision)
		old, err := s.At(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		want(t, list(old, ""), m.state(from, "")...)
		c, err := s.Watch(t.Context(), "", from)
		if err != nil {
			t.Fatal(err)
		}
		next := put(t, s, "k/2", fmt.Sprint("after ", compaction))
		if m.add(next); next.Revision <= newest {
			t.Errorf("the first commit has revision %d, want more than %d", next.Revision, newest)
		}
		want(t, take(t, c, next.Revision), m.after(from, "")...)
		c.Close()
	}
}

// testCompactedDeletion checks a cursor that starts before a deletion at the compacted revision. It fails or delivers
// the deletion, but never omits it (etcd#18089, etcd#19179).
func testCompactedDeletion(t *testing.T, p backend) {
	s, other := p.open(t), p.open(t)
	var m model
	for _, value := range []string{"1", "2", "3", "", "5"} {
		m.add(put(t, s, "k", value))
	}
	deleted := m.events[3].Revision
	last := m.events[4].Revision
	if _, err := other.Wait(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	compact(t, s, deleted)
	for _, store := range []storage.Store{s, other, p.open(t)} {
		for _, after := range []int64{m.events[2].Revision, deleted - 1, deleted} {
			c, err := store.Watch(t.Context(), "k", after)
			if err == nil {
				var events []string
				if events, err = tryTake(c, last); err == nil {
					want(t, events, m.after(after, "")...)
				}
				c.Close()
			}
			if err != nil && (after == deleted || !storage.MissedEvents(err)) {
				t.Errorf("a cursor after revision %d ends with %v", after, err)
			}
		}
	}
}

// tryTake reads a cursor up to at least a revision, or until its error. Like take, it checks the progress.
func tryTake(c *storage.Cursor, revision int64) (all []string, err error) {
	c.Await(revision)
	for progress := int64(0); progress < revision; {
		events, p, err := c.Take(nil)
		if err != nil {
			return all, err
		}
		for _, e := range events {
			if e.Revision <= progress {
				return all, fmt.Errorf("%s is delivered after progress %d", showEvent(e), progress)
			}
			all = append(all, showEvent(e))
		}
		if progress = p; progress < revision && len(events) == 0 {
			<-c.Ready()
		}
	}
	return all, nil
}

// testSlowCursor checks a cursor that is read late, and another one that is read in time. The late one delivers all
// events or ends (etcd#17529).
func testSlowCursor(t *testing.T, p backend) {
	s, other := p.open(t), p.open(t)
	slow, err := other.Watch(t.Context(), "", other.Head().Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	quick, err := other.Watch(t.Context(), "", other.Head().Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer quick.Close()
	var m model
	for i := range 200 { // more events than a cursor may fall behind
		var writes []storage.Write
		for j := range 100 {
			key := fmt.Sprintf("k/%d", j)
			writes = append(writes, write(key, fmt.Sprint(i), revisionOf(s, key)))
		}
		events, err := s.Commit(t.Context(), writes)
		if err != nil {
			t.Fatal(err)
		}
		if m.add(events...); i%20 == 19 {
			last := events[len(events)-1].Revision
			want(t, take(t, quick, last), m.after(0, "")...)
			m.events = nil
		}
	}
	if events, err := tryTake(slow, s.Head().Revision()); err == nil && len(events) != 200*100 ||
		err != nil && !errors.Is(err, storage.ErrLagging) {
		t.Errorf("the slow cursor has delivered %d events, %v", len(events), err)
	}
}

// testOrder checks cursors during concurrent commits: each event is delivered once, in the order of revisions, and
// never after progress up to its revision (etcd#15220, etcd#15271, etcd#17247).
func testOrder(t *testing.T, p backend) {
	stores := []storage.Store{p.open(t), p.open(t)}
	start := stores[0].Head().Revision()
	var mu sync.Mutex
	var m model
	var writers sync.WaitGroup
	for i := range 4 {
		s := stores[i%2]
		writers.Go(func() {
			for n := range 50 {
				key := fmt.Sprintf("%d/%d", i, n%5)
				events, err := s.Commit(context.Background(), []storage.Write{write(key, fmt.Sprint(n), revisionOf(s, key))})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				m.add(events...)
				mu.Unlock()
			}
		})
	}
	running := make([]*storage.Cursor, len(stores))
	for i, s := range stores {
		c, err := s.Watch(t.Context(), "", start)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		running[i] = c
	}
	early := make([][]string, len(stores))
	for i, c := range running { // while the writers run
		var err error
		if early[i], err = tryTake(c, start+20); err != nil {
			t.Fatal(err)
		}
	}
	writers.Wait()
	slices.SortFunc(m.events, func(a, b *storage.Event) int { return int(a.Revision - b.Revision) })
	last := m.events[len(m.events)-1].Revision
	for i, c := range running {
		rest, err := tryTake(c, last)
		if err != nil {
			t.Fatal(err)
		}
		want(t, append(early[i], rest...), m.after(start, "")...)
	}
}

// testCompactionRace checks reads and cursors of old revisions during compactions. They return the right state and
// events, or an error (etcd#18667).
func testCompactionRace(t *testing.T, p backend) {
	s, reader := p.open(t), p.open(t)
	var m model
	for i := range 60 {
		m.add(put(t, s, fmt.Sprintf("k/%d", i%7), fmt.Sprint(i)))
	}
	last := m.events[len(m.events)-1].Revision
	if _, err := reader.Wait(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, e := range m.events {
			compact(t, s, e.Revision)
		}
	}()
	for i, running := 0, true; running; i++ {
		select {
		case <-done:
			running = false
		default:
		}
		revision := m.events[i%len(m.events)].Revision
		old, err := reader.At(t.Context(), revision)
		if err == nil {
			want(t, list(old, ""), m.state(revision, "")...)
		} else if !storage.MissedEvents(err) {
			t.Errorf("At(%d): %v", revision, err)
		}
		c, err := reader.Watch(t.Context(), "", revision)
		if err == nil {
			var events []string
			if events, err = tryTake(c, last); err == nil {
				want(t, events, m.after(revision, "")...)
			}
			c.Close()
		}
		if err != nil && !storage.MissedEvents(err) {
			t.Errorf("Watch after %d: %v", revision, err)
		}
	}
}

// testLateStore checks a store that has not seen the newest revision of another one. It rejects a watch of this
// revision or delivers only later events (etcd#20221).
func testLateStore(t *testing.T, p backend) {
	s, other := p.open(t), p.open(t)
	for i := range 30 {
		before := put(t, s, "a", fmt.Sprint(i)).Revision
		c, err := other.Watch(t.Context(), "", before)
		if err != nil {
			var future *storage.FutureError
			if !errors.As(err, &future) {
				t.Fatal(err)
			}
			continue
		}
		next := put(t, s, "b", fmt.Sprint(i))
		want(t, take(t, c, next.Revision), showEvent(next))
		c.Close()
	}
}

// testRepeatedCommit checks that a commit that is sent twice has an effect once (etcd#14890, etcd#18424).
func testRepeatedCommit(t *testing.T, p backend) {
	s := p.open(t)
	start := s.Head().Revision()
	var m model
	m.add(put(t, s, "a", "1"))
	for _, writes := range [][]storage.Write{
		{write("a", "2", m.events[0].Revision), write("b", "1", 0)},
		{{Key: "a", Expected: 0}},
	} {
		if writes[0].Expected == 0 {
			writes[0].Expected = revisionOf(s, "a")
		}
		events, err := s.Commit(t.Context(), writes)
		if err != nil {
			t.Fatal(err)
		}
		m.add(events...)
		var conflict *storage.ConflictError
		if _, err := s.Commit(t.Context(), writes); !errors.As(err, &conflict) || conflict.Key != "a" ||
			show(conflict.Current) != show(events[0].Record) {
			t.Errorf("the second commit returns %v", err)
		}
	}
	c, err := s.Watch(t.Context(), "", start)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want(t, take(t, c, s.Head().Revision()), m.after(start, "")...)
}

// testTTLRemoved checks that only the last TTL of a key determines its deletion.
func testTTLRemoved(t *testing.T, p backend) {
	s := p.open(t)
	commit := func(key string, ttl time.Duration) *storage.Event {
		w := write(key, "1", revisionOf(s, key))
		w.TTL = ttl
		events, err := s.Commit(t.Context(), []storage.Write{w})
		if err != nil {
			t.Fatal(err)
		}
		return events[0]
	}
	commit("kept", time.Second)
	commit("longer", time.Second)
	commit("kept", 0)
	commit("longer", time.Hour)
	if p.keeps {
		return
	}
	last := commit("short", time.Second)
	c, err := s.Watch(t.Context(), "", last.Revision)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for {
		<-c.Ready()
		events, _, err := c.Take(nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) > 0 {
			if events[0].Key != "short" || events[0].Record != nil || s.Head().Get("kept") == nil ||
				s.Head().Get("longer") == nil {
				t.Errorf("%s", showEvent(events[0]))
			}
			return
		}
	}
}
