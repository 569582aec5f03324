package storage_test

import (
	"sync"
	"testing"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestFollower checks that concurrent calls of Refresh advance a Follower once for each head, starting from
// the previous head.
func TestFollower(t *testing.T) {
	heads := []*storage.Snapshot{new(storage.Loader).Snapshot(1), new(storage.Loader).Snapshot(2)}
	head := heads[0]
	var seen [][2]int64
	f := storage.Follower{Head: func() *storage.Snapshot { return head },
		Advance: func(old, current *storage.Snapshot) {
			seen = append(seen, [2]int64{old.Revision(), current.Revision()})
		}}
	// The third head is older than the second, as after a restore.
	for _, head = range []*storage.Snapshot{heads[0], heads[1], heads[0]} {
		var refreshing sync.WaitGroup
		for range 8 {
			refreshing.Go(f.Refresh)
		}
		refreshing.Wait()
	}
	if len(seen) != 3 || seen[0] != [2]int64{0, 1} || seen[1] != [2]int64{1, 2} || seen[2] != [2]int64{2, 1} {
		t.Errorf("got advances %v, want 0→1, 1→2, 2→1", seen)
	}
}
