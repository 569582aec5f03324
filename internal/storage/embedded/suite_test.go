package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// each runs a test on a store in memory and on one on disk.
func each(t *testing.T, o Options, test func(t *testing.T, s *logstore.Store)) {
	t.Helper()
	for _, place := range []string{"memory", "disk"} {
		t.Run(place, func(t *testing.T) {
			o := o
			if place == "disk" {
				o.Dir, o.FS = "data", vfs.NewMem()
			}
			test(t, open(t, o))
		})
	}
}

// open opens a store and closes it at the end of the test.
func open(t testing.TB, o Options) *logstore.Store {
	t.Helper()
	s, err := Open(o)
	return closeAtEnd(t, s, err)
}

// openWithDisk opens a store and returns it with its log.
func openWithDisk(t testing.TB, o Options) (*logstore.Store, *disk) {
	t.Helper()
	s, l, err := openDirectory(o)
	return closeAtEnd(t, s, err), l
}

func closeAtEnd(t testing.TB, s *logstore.Store, err error) *logstore.Store {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// put writes value to key and returns the event. The current state of key does not matter.
func put(t testing.TB, s *logstore.Store, key, value string) *storage.Event {
	t.Helper()
	return commit(t, s, storage.Write{Key: key, Value: []byte(value)})
}

// remove deletes key and returns the event.
func remove(t testing.TB, s *logstore.Store, key string) *storage.Event {
	t.Helper()
	return commit(t, s, storage.Write{Key: key})
}

func commit(t testing.TB, s *logstore.Store, w storage.Write) *storage.Event {
	t.Helper()
	if r := s.Head().Get(w.Key); r != nil {
		w.Expected = r.Modified
	}
	events, err := s.Commit(context.Background(), []storage.Write{w})
	if err != nil {
		t.Fatal(err)
	}
	return events[0]
}

// show renders a record as key=value@created/modified.
func show(r *storage.Record) string {
	if r == nil {
		return "-"
	}
	return fmt.Sprintf("%s=%s@%d/%d", r.Key, r.Value, r.Created, r.Modified)
}

// list renders the records of a walk.
func list(s *storage.Snapshot, prefix, after string) []string {
	var all []string
	for r := range s.Walk(prefix, after) {
		all = append(all, show(r))
	}
	return all
}

func showEvent(e *storage.Event) string {
	return fmt.Sprintf("%d %s %s<-%s", e.Revision, e.Key, show(e.Record), show(e.Previous))
}

// next takes at least n events from c and renders them.
func next(t testing.TB, c *storage.Cursor, n int) []string {
	t.Helper()
	var all []string
	for len(all) < n {
		<-c.Ready()
		events, _, err := c.Take(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			all = append(all, showEvent(e))
		}
	}
	return all
}

func want(t testing.TB, got []string, expect ...string) {
	t.Helper()
	if !slices.Equal(got, expect) {
		t.Errorf("got  %q\nwant %q", got, expect)
	}
}

// TestCommitIsVisibleInOrder checks the state after each of several commits. CRD-061
func TestCommitIsVisibleInOrder(t *testing.T) {
	each(t, Options{}, func(t *testing.T, s *logstore.Store) {
		start := s.Head().Revision()
		if start != 1 {
			t.Errorf("an empty store is at revision %d, want 1", start)
		}
		put(t, s, "a/x", "1")
		put(t, s, "a/y", "2")
		put(t, s, "b/x", "3")
		put(t, s, "a/x", "4")
		remove(t, s, "a/y")
		want(t, list(s.Head(), "a/", ""), "a/x=4@2/5")
		want(t, list(s.Head(), "", ""), "a/x=4@2/5", "b/x=3@4/4")
		for revision, expect := range map[int64][]string{
			1: nil,
			3: {"a/x=1@2/2", "a/y=2@3/3"},
			5: {"a/x=4@2/5", "a/y=2@3/3"},
			6: {"a/x=4@2/5"},
		} {
			old, err := s.At(context.Background(), revision)
			if err != nil {
				t.Fatal(err)
			}
			want(t, list(old, "a/", ""), expect...)
			if n := old.Count("a/", ""); n != len(expect) {
				t.Errorf("Count at %d is %d", revision, n)
			}
		}
		var future *storage.FutureError
		if _, err := s.At(context.Background(), 7); !errors.As(err, &future) || future.Current != 6 {
			t.Errorf("At(7): %v", err)
		}
	})
}

// TestWatchFromThePastThenLive checks that a cursor delivers past events and then new ones. CRD-062
func TestWatchFromThePastThenLive(t *testing.T) {
	each(t, Options{}, func(t *testing.T, s *logstore.Store) {
		put(t, s, "a/x", "1")
		put(t, s, "b/x", "2")
		put(t, s, "a/x", "3")
		c, err := s.Watch(context.Background(), "a/", 1)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		want(t, next(t, c, 2), "2 a/x a/x=1@2/2<--", "4 a/x a/x=3@2/4<-a/x=1@2/2")
		put(t, s, "b/y", "5")
		remove(t, s, "a/x")
		want(t, next(t, c, 1), "6 a/x -<-a/x=3@2/4")
	})
}

// TestReopenKeepsEverything checks that a reopened store has the same state and history. CRD-071
func TestReopenKeepsEverything(t *testing.T) {
	o := Options{Dir: "data", FS: vfs.NewMem()}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "a/x", "1")
	put(t, s, "a/y", "2")
	remove(t, s, "a/x")
	put(t, s, "a/x", "3")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	want(t, list(s.Head(), "", ""), "a/x=3@5/5", "a/y=2@3/3")
	old, err := s.At(context.Background(), 3)
	if err != nil {
		t.Fatal(err)
	}
	want(t, list(old, "", ""), "a/x=1@2/2", "a/y=2@3/3")
	c, err := s.Watch(context.Background(), "a/", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	put(t, s, "a/z", "4")
	want(t, next(t, c, 4), "3 a/y a/y=2@3/3<--", "4 a/x -<-a/x=1@2/2", "5 a/x a/x=3@5/5<--", "6 a/z a/z=4@6/6<--")
}
