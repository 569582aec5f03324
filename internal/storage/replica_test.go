package storage

import (
	"context"
	"fmt"
	"testing"
)

// noHistory is for replicas that remember everything.
type noHistory struct{}

func (noHistory) Replay(context.Context, string, int64, int64) ([]*Event, int64, error) {
	panic("it was asked for the past")
}

func (noHistory) ReadAt(context.Context, int64, *Snapshot, func(string, *Record)) error {
	panic("it was asked for the past")
}

// A cursor that catches up gives all of a revision or none, however many it gives at once: where it goes on from is a revision.
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
		r.Apply(events, revision) // told again
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
