package storage_test

import (
	"sync"
	"testing"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// A Follower is brought on once for each head, from the one before, however many ask.
func TestFollower(t *testing.T) {
	heads := []*storage.Snapshot{new(storage.Loader).Snapshot(1), new(storage.Loader).Snapshot(2)}
	head := heads[0]
	var seen [][2]int64
	f := storage.Follower{Head: func() *storage.Snapshot { return head }, Advance: func(was, is *storage.Snapshot) {
		seen = append(seen, [2]int64{was.Revision(), is.Revision()})
	}}
	for _, head = range []*storage.Snapshot{heads[0], heads[1], heads[0]} { // the last as where a store has been put back
		var asking sync.WaitGroup
		for range 8 {
			asking.Go(f.Refresh)
		}
		asking.Wait()
	}
	if len(seen) != 3 || seen[0] != [2]int64{0, 1} || seen[1] != [2]int64{1, 2} || seen[2] != [2]int64{2, 1} {
		t.Error(seen)
	}
}
