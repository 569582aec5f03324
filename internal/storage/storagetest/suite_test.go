package storagetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
)

// backend is shared state on which a test can open several stores.
type backend struct {
	open   func(t *testing.T) storage.Store // opens another store on the backend and closes it at the end of the test
	limits bool                             // whether it rejects commits that etcd rejects
	keeps  bool                             // whether it never deletes expired keys
	crash  func(t *testing.T)               // restarts the backend after a crash; nil if it keeps nothing
}

// backends returns constructors of empty backends of all kinds.
func backends(t *testing.T) map[string]func(t *testing.T) backend {
	var server *Etcd
	n := 0
	embeddedBackend := func(o embedded.Options) func(t *testing.T) backend {
		return func(t *testing.T) backend {
			disk := vfs.NewCrashableMem()
			var s storage.Store
			restart := func(t *testing.T) {
				var err error
				if o.FS = disk; o.Dir == "" {
					o.FS = nil
				}
				if s, err = embedded.Open(o); err != nil {
					t.Fatal(err)
				}
				closeAtEnd(t, s)
			}
			restart(t)
			b := backend{open: func(*testing.T) storage.Store { return s }}
			if o.Dir != "" {
				b.crash = func(t *testing.T) {
					disk = disk.CrashClone(vfs.CrashCloneCfg{})
					restart(t)
				}
			}
			return b
		}
	}
	return map[string]func(t *testing.T) backend{
		"memory": embeddedBackend(embedded.Options{}),
		"disk":   embeddedBackend(embedded.Options{Dir: "data"}),
		"log": func(*testing.T) backend {
			n++
			l := NewLog(uint64(n))
			return backend{limits: true, keeps: true,
				open: func(t *testing.T) storage.Store { return closeAtEnd(t, l.Open()) }}
		},
		"etcd": func(inner *testing.T) backend {
			if server == nil {
				if _, found := Program(t, "etcd"); !found {
					inner.Skip(etcdMissing)
				}
				server = StartEtcd(t)
			}
			n++
			prefix := fmt.Sprintf("/suite%d/", n)
			crash := func(*testing.T) {
				server.Kill()
				server.Start()
			}
			return backend{limits: true, crash: crash, open: func(t *testing.T) storage.Store {
				s, err := etcd.Open(t.Context(), etcd.Options{Cluster: etcd.Cluster{Servers: []string{server.URL},
					Prefix: prefix}})
				if err != nil {
					t.Fatal(err)
				}
				return closeAtEnd(t, s)
			}}
		},
	}
}

func closeAtEnd(t *testing.T, s storage.Store) storage.Store {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestStores runs the suite on every store.
func TestStores(t *testing.T) {
	for name, newBackend := range backends(t) {
		t.Run(name, func(t *testing.T) {
			for name, test := range suite {
				t.Run(name, func(t *testing.T) { test(t, newBackend(t)) })
			}
		})
	}
}

var suite = map[string]func(t *testing.T, p backend){
	"states":       testStates,
	"conflicts":    testConflicts,
	"guards":       testGuards,
	"invalid":      testInvalid,
	"limits":       testLimits,
	"atomicity":    testAtomicity,
	"compaction":   testCompaction,
	"progress":     testProgress,
	"fresh":        testFresh,
	"derived":      testDerived,
	"close":        testClose,
	"model":        testModel,
	"linearizable": testLinearizable,
}

func write(key, value string, expected int64) storage.Write {
	return storage.Write{Key: key, Value: []byte(value), Expected: expected}
}

// put writes value to key, or deletes key if value is "". It returns the event. The current state of key does not
// matter.
func put(t *testing.T, s storage.Store, key, value string) *storage.Event {
	t.Helper()
	w := storage.Write{Key: key, Expected: revisionOf(s, key)}
	if value != "" {
		w.Value = []byte(value)
	}
	events, err := s.Commit(t.Context(), []storage.Write{w})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Head().Revision(); got < events[0].Revision {
		t.Fatalf("the head is at revision %d, want at least %d of the commit", got, events[0].Revision)
	}
	return events[0]
}

func remove(t *testing.T, s storage.Store, key string) *storage.Event {
	t.Helper()
	return put(t, s, key, "")
}

func revisionOf(s storage.Store, key string) int64 {
	if r := s.Head().Get(key); r != nil {
		return r.Modified
	}
	return 0
}

func show(r *storage.Record) string {
	if r == nil {
		return "-"
	}
	return fmt.Sprintf("%s=%s@%d/%d", r.Key, r.Value, r.Created, r.Modified)
}

func showEvent(e *storage.Event) string {
	return fmt.Sprintf("%d %s %s<-%s", e.Revision, e.Key, show(e.Record), show(e.Previous))
}

func list(s *storage.Snapshot, prefix string) (all []string) {
	for r := range s.Walk(prefix, "") {
		all = append(all, show(r))
	}
	return all
}

func want(t *testing.T, got []string, expect ...string) {
	t.Helper()
	if !slices.Equal(got, expect) {
		t.Fatalf("got  %q\nwant %q", got, expect)
	}
}

// model is a simple model of a history.
type model struct{ events []*storage.Event }

func (m *model) add(events ...*storage.Event) { m.events = append(m.events, events...) }

// state renders the records below a prefix at a revision.
func (m *model) state(revision int64, prefix string) (all []string) {
	live := map[string]string{}
	var keys []string
	for _, e := range m.events {
		if e.Revision <= revision && strings.HasPrefix(e.Key, prefix) {
			live[e.Key] = show(e.Record)
			keys = append(keys, e.Key)
		}
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		if live[key] != "-" {
			all = append(all, live[key])
		}
	}
	return all
}

// after renders the events below a prefix that are newer than a revision.
func (m *model) after(revision int64, prefix string) (all []string) {
	for _, e := range m.events {
		if e.Revision > revision && strings.HasPrefix(e.Key, prefix) {
			all = append(all, showEvent(e))
		}
	}
	return all
}

// take reads a cursor up to a revision. It checks that no event precedes the progress reported before.
func take(t *testing.T, c *storage.Cursor, revision int64) (all []string) {
	t.Helper()
	c.Await(revision)
	for progress := int64(0); progress < revision; {
		events, p, err := c.Take(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Revision <= progress {
				t.Fatalf("%s is delivered after progress %d", showEvent(e), progress)
			}
			if e.Revision <= revision {
				all = append(all, showEvent(e))
			}
		}
		if progress = p; progress < revision && len(events) == 0 {
			<-c.Ready()
		}
	}
	return all
}

// testStates checks snapshots and cursors at all revisions (CRD-061 CRD-062).
func testStates(t *testing.T, p backend) {
	s := p.open(t)
	start := s.Head().Revision()
	early, err := s.Watch(t.Context(), "a/", start)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	var m model
	for _, step := range []struct{ key, value string }{
		{"a/x", "1"}, {"a/y", "2"}, {"b/x", "3"}, {"a/x", "4"}, {"a/y", ""}, {"a/y", "5"},
	} {
		m.add(put(t, s, step.key, step.value))
	}
	head := s.Head().Revision()
	if e := m.events[5]; e.Record.Created != e.Revision || m.events[3].Record.Created != m.events[0].Revision {
		t.Errorf("wrong Created: %s, %s", showEvent(m.events[3]), showEvent(e))
	}
	for revision := start; revision <= head; revision++ { // includes gaps
		old, err := s.At(t.Context(), revision)
		if err != nil {
			t.Fatal(err)
		}
		want(t, list(old, ""), m.state(revision, "")...)
		if old.Revision() != revision || old.Count("a/", "") != len(m.state(revision, "a/")) {
			t.Errorf("At(%d) is at revision %d with %d records", revision, old.Revision(), old.Count("a/", ""))
		}
		c, err := s.Watch(t.Context(), "a/", revision)
		if err != nil {
			t.Fatal(err)
		}
		want(t, take(t, c, head), m.after(revision, "a/")...)
		c.Close()
	}
	want(t, take(t, early, head), m.after(start, "a/")...)
	var future *storage.FutureError
	if _, err := s.At(t.Context(), head+100); !errors.As(err, &future) {
		t.Errorf("At a future revision: %v", err)
	}
	if _, err := s.Watch(t.Context(), "", head+100); !errors.As(err, &future) {
		t.Errorf("Watch from a future revision: %v", err)
	}
}

// testConflicts checks that a write with an outdated Expected changes nothing and returns the stored record
// (CRD-053).
func testConflicts(t *testing.T, p backend) {
	s, other := p.open(t), p.open(t)
	first := put(t, s, "a/x", "1")
	for _, expected := range []int64{0, first.Revision + 1} {
		_, err := s.Commit(t.Context(), []storage.Write{write("a/y", "1", 0), write("a/x", "2", expected)})
		var conflict *storage.ConflictError
		if !errors.As(err, &conflict) || conflict.Guard || conflict.Key != "a/x" ||
			show(conflict.Current) != show(first.Record) || conflict.Revision < first.Revision {
			t.Errorf("Expected %d: got %v", expected, err)
		}
	}
	want(t, list(s.Head(), ""), show(first.Record)) // all or nothing
	if _, err := other.Wait(t.Context(), first.Revision); err != nil {
		t.Fatal(err)
	}
	deleted := remove(t, other, "a/x")
	_, err := s.Commit(t.Context(), []storage.Write{write("a/x", "2", first.Revision)})
	var conflict *storage.ConflictError
	if !errors.As(err, &conflict) || conflict.Current != nil || conflict.Revision < deleted.Revision {
		t.Errorf("write to a deleted key: got %v", err)
	}
}

// testGuards checks that a commit fails if a key or prefix in its guards has changed.
func testGuards(t *testing.T, p backend) {
	s := p.open(t)
	ns := put(t, s, "ns/a", "1").Revision
	x := put(t, s, "p/x/1", "1").Revision
	y := put(t, s, "p/y/1", "1").Revision
	try := func(g storage.Guard) error {
		_, err := s.Commit(t.Context(), []storage.Write{write("o", "1", revisionOf(s, "o"))}, g)
		return err
	}
	for _, g := range []storage.Guard{
		{Key: "ns/a", Revision: ns}, {Key: "ns/b"}, {Key: "p/x/", Prefix: true, Revision: x},
		{Key: "p/", Prefix: true, Revision: y}, {Key: "p/x/", Prefix: true, Revision: y}, {Key: "q/", Prefix: true},
	} {
		if err := try(g); err != nil {
			t.Errorf("%+v: %v", g, err)
		}
	}
	for _, g := range []storage.Guard{
		{Key: "ns/a", Revision: ns - 1}, {Key: "ns/a"}, {Key: "ns/b", Revision: ns},
		{Key: "p/", Prefix: true, Revision: y - 1}, {Key: "p/", Prefix: true},
	} {
		var conflict *storage.ConflictError
		if err := try(g); !errors.As(err, &conflict) || !conflict.Guard || conflict.Key != g.Key {
			t.Errorf("%+v: %v", g, err)
		}
		if g.Key == "p/" && revisionOfRecord(conflict.Current) != y {
			t.Errorf("%+v: Current is %s, want the newest record", g, show(conflict.Current))
		}
	}
}

func revisionOfRecord(r *storage.Record) int64 {
	if r == nil {
		return 0
	}
	return r.Modified
}

func testInvalid(t *testing.T, p backend) {
	s := p.open(t)
	before := s.Head().Revision()
	for name, writes := range map[string][]storage.Write{
		"nothing":  nil,
		"no key":   {{Value: []byte("1")}},
		"NUL":      {write("a\x00b", "1", 0)},
		"long key": {write(string(make([]byte, storage.MaxKey+1)), "1", 0)},
		"absent":   {{Key: "a"}},
		"twice":    {write("a", "1", 0), write("a", "2", 0)},
	} {
		if _, err := s.Commit(t.Context(), writes); !errors.Is(err, storage.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.Head().Revision() != before {
		t.Error("something was written")
	}
}

// testLimits checks that backends with etcd's limits return ErrTooLarge for commits that exceed them.
func testLimits(t *testing.T, p backend) {
	s := p.open(t)
	many := make([]storage.Write, MaxWrites+1)
	for i := range many {
		many[i] = write(fmt.Sprintf("k/%d", i), "1", 0)
	}
	if _, err := s.Commit(t.Context(), many[:MaxWrites]); err != nil {
		t.Errorf("%d writes: %v", MaxWrites, err)
	}
	for i := range many {
		many[i].Key = fmt.Sprintf("l/%d", i)
	}
	_, err := s.Commit(t.Context(), many)
	if errors.Is(err, storage.ErrTooLarge) != p.limits {
		t.Errorf("%d writes: %v", len(many), err)
	}
	for _, size := range []int{MaxBytes + 1, 3 << 20} {
		w := write("large", strings.Repeat("x", size), revisionOf(s, "large"))
		_, err := s.Commit(t.Context(), []storage.Write{w})
		if errors.Is(err, storage.ErrTooLarge) != p.limits {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	put(t, s, "small", strings.Repeat("x", 1<<20))
}

// testAtomicity checks that a cursor of another store delivers all writes of each commit.
func testAtomicity(t *testing.T, p backend) {
	s, other := p.open(t), p.open(t)
	c, err := other.Watch(t.Context(), "", other.Head().Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var m model
	for i := range 30 {
		var writes []storage.Write
		for j := range 50 {
			writes = append(writes, write(fmt.Sprintf("k/%02d/%02d", j, i), "1", 0))
		}
		events, err := s.Commit(t.Context(), writes)
		if err != nil {
			t.Fatal(err)
		}
		for j, e := range events {
			if e.Key != writes[j].Key || e.Record == nil || e.Record.Modified != e.Revision || e.Previous != nil {
				t.Fatalf("event %d is %s", j, showEvent(e))
			}
		}
		m.add(events...)
	}
	head := s.Head().Revision()
	want(t, take(t, c, head), m.after(0, "")...)
	late, err := other.Watch(t.Context(), "", m.events[120].Revision)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	want(t, take(t, late, head), m.after(m.events[120].Revision, "")...)
}

// testCompaction checks that compacted revisions cannot be read and that later ones are unchanged (CRD-062).
func testCompaction(t *testing.T, p backend) {
	s := p.open(t)
	var m model
	for i := range 20 {
		m.add(put(t, s, fmt.Sprintf("k/%d", i%3), fmt.Sprint(i)))
	}
	at := m.events[10].Revision
	running, err := s.Watch(t.Context(), "", at)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	compact(t, s, at)
	var compacted *storage.CompactedError
	if _, err := s.At(t.Context(), at-1); !errors.As(err, &compacted) {
		t.Errorf("At a compacted revision: %v", err)
	}
	if _, err := s.Watch(t.Context(), "", at-1); !errors.As(err, &compacted) {
		t.Errorf("Watch from a compacted revision: %v", err)
	}
	if other := p.open(t); other != s {
		c, err := other.Watch(t.Context(), "", at-1)
		if err == nil {
			_, _, err = c.Take(nil)
		}
		if !storage.MissedEvents(err) {
			t.Errorf("Watch from a compacted revision in another store: %v", err)
		}
		if _, err := other.At(t.Context(), at-1); !errors.As(err, &compacted) {
			t.Errorf("At a compacted revision in another store: %v", err)
		}
		old, err := other.At(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		want(t, list(old, ""), m.state(at, "")...)
	}
	old, err := s.At(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	want(t, list(old, ""), m.state(at, "")...)
	want(t, take(t, running, s.Head().Revision()), m.after(at, "")...)
}

// testProgress checks that changes outside a cursor's prefix advance its progress (CRD-063).
func testProgress(t *testing.T, p backend) {
	s := p.open(t)
	c, err := s.Watch(t.Context(), "a/", s.Head().Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := take(t, c, put(t, s, "b/x", "1").Revision); len(got) > 0 {
		t.Errorf("got %q", got)
	}
}

// testFresh checks that Fresh returns all commits that other stores have acknowledged, even if they are delivered
// late.
func testFresh(t *testing.T, p backend) {
	s, other := p.open(t), p.open(t)
	for i := range 50 {
		e := put(t, s, "a", fmt.Sprint(i))
		now, err := other.Fresh(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := show(now.Get("a")); got != show(e.Record) {
			t.Fatalf("got %s, want %s", got, show(e.Record))
		}
		if got := show(other.Head().Get("a")); got != show(e.Record) {
			t.Fatalf("Head has %s, want %s", got, show(e.Record))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.At(ctx, 1); err == nil {
		t.Error("At with a cancelled context succeeds")
	}
}

// testDerived checks that Write.Derived is in the record that its writer reads.
func testDerived(t *testing.T, p backend) {
	s := p.open(t)
	known := &struct{ n int }{1}
	events, err := s.Commit(t.Context(), []storage.Write{{Key: "a", Value: []byte("1"), Derived: known}})
	if err != nil {
		t.Fatal(err)
	}
	if events[0].Record != s.Head().Get("a") || events[0].Record.Derived.Load() != any(known) {
		t.Errorf("%s", show(events[0].Record))
	}
}

func testClose(t *testing.T, p backend) {
	s := p.open(t)
	c, err := s.Watch(t.Context(), "", s.Head().Revision())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		<-c.Ready()
		_, _, err = c.Take(nil)
	}
	if !errors.Is(err, storage.ErrClosed) {
		t.Errorf("Take: %v", err)
	}
	if _, err := s.Commit(t.Context(), []storage.Write{write("a", "1", 0)}); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("Commit: %v", err)
	}
	if _, err := s.At(t.Context(), 1); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("At: %v", err)
	}
	if _, err := s.Watch(t.Context(), "", 1); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("Watch: %v", err)
	}
}

var prefixes = []string{"", "a/", "a/b/", "b/a/1", "a", "c/", "a/a/11"}

// testModel compares random operations of three stores with a simple model. Cursors of any prefix and start deliver
// exactly the events of the history, in order. The state of any revision results from all events up to that
// revision (CRD-061 CRD-062).
func testModel(t *testing.T, p backend) {
	writers := []storage.Store{p.open(t), p.open(t), p.open(t)}
	r := rand.New(rand.NewPCG(3, 7))
	var m model
	start := writers[0].Head().Revision()
	for range 200 {
		s := writers[r.IntN(len(writers))]
		head, err := s.Fresh(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		prefix, revision := prefixes[r.IntN(len(prefixes))], start+r.Int64N(head.Revision()-start+1)
		switch r.IntN(6) {
		case 0:
			old, err := s.At(t.Context(), revision)
			if err != nil {
				t.Fatal(err)
			}
			want(t, list(old, prefix), m.state(revision, prefix)...)
		case 1:
			c, err := s.Watch(t.Context(), prefix, revision)
			if err != nil {
				t.Fatal(err)
			}
			want(t, take(t, c, head.Revision()), m.after(revision, prefix)...)
			c.Close()
		default:
			m.add(randomCommit(t, s, r)...)
		}
	}
}

// randomCommit changes up to three random keys.
func randomCommit(t *testing.T, s storage.Store, r *rand.Rand) []*storage.Event {
	t.Helper()
	var writes []storage.Write
	for range 1 + r.IntN(3) {
		key := fmt.Sprintf("%c/%c/%d", 'a'+rune(r.IntN(2)), 'a'+rune(r.IntN(2)), r.IntN(12))
		if slices.ContainsFunc(writes, func(w storage.Write) bool { return w.Key == key }) {
			continue
		}
		w := write(key, fmt.Sprint(r.IntN(1000)), revisionOf(s, key))
		if w.Expected != 0 && r.IntN(3) == 0 {
			w.Value = nil
		}
		writes = append(writes, w)
	}
	events, err := s.Commit(t.Context(), writes)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(events, func(a, b *storage.Event) int { return int(a.Revision - b.Revision) })
	return events
}
