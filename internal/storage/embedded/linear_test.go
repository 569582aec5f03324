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

// Reads and writes of many clients, through a disk that fails for a while or for good, a
// crash and a restart, are linearizable (CRD-053, CRD-071).
func TestLinearizable(t *testing.T) {
	for seed := range uint64(iterations(25)) {
		r := rand.New(rand.NewPCG(seed, 5))
		disk := vfs.NewCrashableMem()
		fs := &faultFS{FS: disk}
		fs.sticky.Store(true)
		fs.failAt.Store(40 + r.Int64N(400))
		heals, enough, tries := r.IntN(2) == 0, make(chan time.Time), 0
		var mu sync.Mutex // two loops pause
		pause := func(d time.Duration) <-chan time.Time {
			if d == checkInterval {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			switch tries++; {
			case tries > 2 && heals:
				fs.failAt.Store(0)
			case tries == 3:
				close(enough) // whoever waits is told that it is not known
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
			o.diskAfter, o.commitTimeout = pause, func() <-chan time.Time { return enough }
			if place != vfs.FS(fs) {
				o.diskAfter, o.commitTimeout = nil, nil
			}
			s, err := Open(o)
			if place == vfs.FS(fs) && errors.Is(err, errDisk) {
				continue // the disk did not last that long
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
