package storage

import (
	"context"
	"fmt"
	"testing"
)

// noHistory is the HistoryReader of replicas that keep their whole history in memory.
type noHistory struct{}

func (noHistory) Replay(context.Context, string, int64, int64) ([]*Event, int64, error) {
	panic("unexpected read of the log")
}

func (noHistory) ReadAt(context.Context, int64, *Snapshot, func(string, *Record)) error {
	panic("unexpected read of the log")
}

// TestCatchUpBySharedRevisions checks that a Take of a cursor that catches up delivers all events of a revision or
// none. The next Take starts after a revision, so events that are left out of a revision would be lost.
func TestCatchUpBySharedRevisions(t *testing.T) {
	r := NewReplica(new(Loader).Snapshot(1), 1, noHistory{}, ReplicaOptions{})
	defer r.Close()
	const revisions, each = 400, 3
	for i := range revisions {
		var events []*Event
		revision := int64(10 * (i + 1))
		for j := range each {
			key := fmt.Sprintf("k/%d", j)
			events = append(events, &Event{Revision: revision, Key: key, Record: &Record{Key: key, Modified: revision}})
		}
		r.Apply(events, revision)
		r.Apply(events, revision) // the same events again
	}
	c, err := r.Watch(t.Context(), "k/", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all []*Event
	for progress := int64(1); progress < 10*revisions; {
		<-c.Ready()
		if all, progress, err = c.Take(all); err != nil {
			t.Fatal(err)
		}
	}
	if len(all) != revisions*each {
		t.Fatalf("%d events, want %d", len(all), revisions*each)
	}
	for i, e := range all {
		if e.Revision != int64(10*(i/each+1)) || e.Key != fmt.Sprintf("k/%d", i%each) {
			t.Fatalf("event %d is %s at %d", i, e.Key, e.Revision)
		}
	}
}
