package embedded

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// TestLinearizable checks that concurrent reads and writes are linearizable. The disk fails for a while or
// permanently, and the store crashes and is reopened (CRD-053, CRD-071).
func TestLinearizable(t *testing.T) {
	for seed := range uint64(iterations(25)) {
		r := rand.New(rand.NewPCG(seed, 5))
		disk := vfs.NewCrashableMem()
		fs := &faultFS{FS: disk}
		fs.sticky.Store(true)
		fs.failAt.Store(40 + r.Int64N(400))
		recovers, timeout, tries := r.IntN(2) == 0, make(chan time.Time), 0
		var mu sync.Mutex // two goroutines call diskAfter
		diskAfter := func(d time.Duration) <-chan time.Time {
			if d == checkInterval {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			switch tries++; {
			case tries > 2 && recovers:
				fs.failAt.Store(0)
			case tries == 3:
				close(timeout) // waiting commits return ErrInDoubt
				return nil
			}
			now := make(chan time.Time)
			close(now)
			return now
		}
		h := storagetest.NewHistory(seed)
		for _, place := range []vfs.FS{fs, nil} {
			if place == nil {
				place = crash(t, disk, 50, r)
			}
			o := crashOptions(place)
			o.diskAfter, o.commitTimeout = diskAfter, func() <-chan time.Time { return timeout }
			if place != vfs.FS(fs) {
				o.diskAfter, o.commitTimeout = nil, nil
			}
			s, err := Open(o)
			if place == vfs.FS(fs) && errors.Is(err, errDisk) {
				continue // the disk has already failed
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 4 {
				h.Client(s, 30)
			}
			h.Wait()
			s.Close()
		}
		h.Check(t)
	}
}
