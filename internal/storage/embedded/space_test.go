package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// smallDisk is a store on a disk of 4 MiB, with a fake clock.
type smallDisk struct {
	*logstore.Store
	disk    *disk // only if the disk is real
	t       *testing.T
	fs      *smallFS
	clock   *clock
	health  *Health
	random  *rand.Rand
	created int // number of objects created

	onWait  func(n int) // called with the number of a commit that starts to wait, beginning with 1
	waits   atomic.Int64
	timeout chan time.Time // times out all waiting commits
}

const smallSize = 4 << 20

func newSmallDisk(t *testing.T, reserve int64) *smallDisk {
	d := &smallDisk{
		t: t, fs: newSmallFS(smallSize), clock: newClock(), health: new(Health), random: rand.New(rand.NewPCG(1, 1)),
	}
	o := d.options()
	o.Reserve = reserve
	d.Store = open(t, o)
	return d
}

func (d *smallDisk) options() Options {
	o := crashOptions(d.fs)
	o.CompactAfter = 1e6 * time.Hour
	o.DiskUsage, o.Health = d.fs.usage, d.health
	o.Now, o.After, o.diskAfter = d.clock.Now, d.clock.After, d.clock.After
	o.commitTimeout = func() <-chan time.Time {
		if d.onWait != nil {
			d.onWait(int(d.waits.Add(1)))
		}
		return d.timeout
	}
	return o
}

// value returns n random bytes, which cannot be compressed.
func (d *smallDisk) value(n int) []byte {
	v := make([]byte, n)
	for i := range v {
		v[i] = byte(d.random.Uint32())
	}
	return v
}

func (d *smallDisk) write(w storage.Write) error {
	if r := d.Head().Get(w.Key); r != nil {
		w.Expected = r.Modified
	}
	_, err := d.Commit(context.Background(), []storage.Write{w})
	return err
}

// create creates an object of 16 KiB.
func (d *smallDisk) create() error {
	err := d.write(storage.Write{Key: fmt.Sprintf("k/%04d", d.created), Value: d.value(16 << 10)})
	if err == nil {
		d.created++
	}
	return err
}

// fill creates objects until the store returns ErrNoSpace.
func (d *smallDisk) fill() {
	d.t.Helper()
	for {
		switch err := d.create(); {
		case errors.Is(err, storage.ErrNoSpace):
			return
		case err != nil:
			d.t.Fatalf("object %d: %v", d.created, err)
		case d.created > 2*smallSize/(16<<10):
			d.t.Fatal("the disk is never full")
		}
	}
}

// retryUntil calls do until it succeeds, and advances the clock between calls. It fails the test at an error that
// is not in retry.
func (d *smallDisk) retryUntil(do func() error, retry ...error) {
	d.t.Helper()
	for {
		err := do()
		if err == nil {
			return
		}
		expected := false
		for _, r := range retry {
			expected = expected || errors.Is(err, r)
		}
		if !expected {
			d.t.Fatal(err)
		}
		d.clock.advance(time.Second)
		runtime.Gosched()
	}
}

// TestDiskThatIsNearlyFull checks a store whose free space falls below the reserve. It rejects new objects, but
// still accepts deletions and small updates. After deletions it accepts new objects again. The disk is never full
// (CRD-071).
func TestDiskThatIsNearlyFull(t *testing.T) {
	d := newSmallDisk(t, 0)
	d.fill()
	if d.created < 30 {
		t.Errorf("created %d objects, want at least 30", d.created)
	}
	if err := d.health.Err(); err == nil || strings.Contains(err.Error(), "/var") {
		t.Errorf("Health.Err is %v, want an error without a path", err)
	}
	if n := d.fs.failedWrites(); n > 0 {
		t.Errorf("the disk was full %d times", n)
	}
	for i := range d.created / 2 {
		if err := d.write(storage.Write{Key: fmt.Sprintf("k/%04d", i)}); err != nil {
			t.Fatalf("deletion %d: %v", i, err)
		}
	}
	d.retryUntil(d.create, storage.ErrNoSpace)
	d.retryUntil(d.health.Err, d.health.Err())
	if n := d.health.Failures(); n > 0 {
		t.Errorf("the log failed %d times", n)
	}
	d.fill()
}

// TestReserve checks which writes are admitted at different amounts of free space.
func TestReserve(t *testing.T) {
	const free, low, veryLow = 2 << 20, 800 << 10, 300 << 10
	d := newSmallDisk(t, 1<<20)
	d.fs.reportFree(free)
	old := d.value(16 << 10)
	grown := func(n int) []byte { return append(bytes.Clone(old), make([]byte, n)...) }
	for _, c := range []struct {
		name         string
		write        storage.Write
		low, veryLow bool // whether the write is admitted at these amounts of free space
	}{
		{name: "a new object", write: storage.Write{Key: "new", Value: []byte("1")}},
		{name: "a large update", write: storage.Write{Key: "a", Value: grown(smallGrowth + 1)}},
		{name: "a small update", write: storage.Write{Key: "a", Value: grown(smallGrowth)}, low: true},
		{name: "a shrinking update", write: storage.Write{Key: "a", Value: []byte("1")}, low: true},
		{name: "a deletion", write: storage.Write{Key: "a"}, low: true, veryLow: true},
	} {
		for freeBytes, allowed := range map[int64]bool{free: true, low: c.low, veryLow: c.veryLow} {
			d.fs.reportFree(free)
			if err := d.write(storage.Write{Key: "a", Value: old}); err != nil {
				t.Fatal(err)
			}
			d.fs.reportFree(freeBytes)
			d.retryUntil(func() error { return d.freeSpaceSeen(freeBytes) }, errNotYet)
			if err := d.write(c.write); allowed && err != nil || !allowed && !errors.Is(err, storage.ErrNoSpace) {
				t.Errorf("%s, %d bytes free: %v", c.name, freeBytes, err)
			}
			d.fs.reportFree(free)
			d.retryUntil(func() error { return d.freeSpaceSeen(free) }, errNotYet)
			if d.Head().Get("new") != nil {
				if err := d.write(storage.Write{Key: "new"}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestDeletionsFreeSpace checks deletions while space is low. Their space becomes free after the time in
// shortHistory.
func TestDeletionsFreeSpace(t *testing.T) {
	d := newSmallDisk(t, 1<<20)
	for range 30 {
		if err := d.create(); err != nil {
			t.Fatal(err)
		}
	}
	if used := smallSize - d.fs.freeBytes(); used < 30*16<<10 {
		t.Fatalf("only %d bytes are used", used)
	}
	d.fs.reportFree(800 << 10)
	d.retryUntil(func() error { return d.freeSpaceSeen(800 << 10) }, errNotYet)
	for i := range 30 {
		if err := d.write(storage.Write{Key: fmt.Sprintf("k/%04d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	d.retryUntil(func() error {
		if used := smallSize - d.fs.freeBytes(); used > 2*16<<10 {
			return errNotYet
		}
		return nil
	}, errNotYet)
}

// TestCompactionWithoutSpace checks that a compaction that fails for lack of space is retried and does not fail the
// log.
func TestCompactionWithoutSpace(t *testing.T) {
	d := newSmallDisk(t, 1)
	d.fs.refuseCategory(engine.CompactionFiles)
	for d.fs.failedWrites() == 0 {
		if err := d.create(); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.create(); err != nil {
		t.Fatal(err)
	}
	d.fs.refuseCategory("")
	d.retryUntil(func() error {
		if d.fs.compacted() == 0 {
			return errNotYet
		}
		return nil
	}, errNotYet)
	if n := d.health.Failures(); n > 0 {
		t.Errorf("the log failed %d times", n)
	}
}

var errNotYet = errors.New("not yet")

// freeSpaceSeen returns errNotYet until the log has read the given number of free bytes.
func (d *smallDisk) freeSpaceSeen(free int64) error {
	if known, _ := d.health.FreeSpace(); known != free {
		return errNotYet
	}
	return nil
}

// TestDefaultReserve checks the default reserve for several sizes of the disk and of the stored data.
func TestDefaultReserve(t *testing.T) {
	for _, c := range []struct{ size, stored, asked, want int64 }{
		{size: 1 << 40, want: 1 << 30},
		{size: 10 << 30, want: 10 << 30 / 20},
		{size: 1 << 30, stored: 10 << 20, want: 1 << 30 / 20},
		{size: 1 << 30, stored: 100 << 20, want: 108 << 20},
		{size: 1 << 30, stored: 500 << 20, want: (128 + 8) << 20},
		{size: 48 << 20, stored: 4 << 20, want: 12 << 20},
		{size: 48 << 20, stored: 30 << 20, want: 24 << 20},
		{size: 48 << 20, stored: 30 << 20, asked: 5, want: 5},
	} {
		s := space{size: c.size, stored: c.stored, requested: c.asked, workingSpace: 8 << 20}
		if got := s.reserve(); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

// TestSpaceIsCheckedForEachCommit checks that a commit that does not fit does not affect the other commits of its
// group.
func TestSpaceIsCheckedForEachCommit(t *testing.T) {
	d := newSmallDisk(t, 1<<20)
	for range 21 {
		if err := d.create(); err != nil {
			t.Fatal(err)
		}
	}
	d.fs.reportFree(800 << 10)
	d.retryUntil(func() error { return d.freeSpaceSeen(800 << 10) }, errNotYet)
	const pairs = 20
	all := make(chan struct{})
	d.onWait = func(n int) {
		if n == 1+2*pairs {
			close(all)
		}
	}
	d.fs.holdLogWrites(all) // the first write blocks the log until the others are in the queue
	results := make(chan error)
	go func() { results <- d.write(storage.Write{Key: "k/0000"}) }()
	for d.fs.waitingWrites() == 0 {
		runtime.Gosched()
	}
	for i := range pairs {
		go func() { results <- d.write(storage.Write{Key: fmt.Sprintf("k/%04d", i+1)}) }()
		go func() {
			w := storage.Write{Key: fmt.Sprintf("n/%d", i), Value: make([]byte, 100)}
			_, err := d.Commit(context.Background(), []storage.Write{w})
			if !errors.Is(err, storage.ErrNoSpace) {
				t.Errorf("a new object: got %v, want ErrNoSpace", err)
			}
			results <- nil
		}()
	}
	for range 1 + 2*pairs {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// TestDiskThatIsFull checks a store on a disk that other programs fill completely, so that a write fails halfway.
// Once there is free space, the store continues, and its content is correct.
func TestDiskThatIsFull(t *testing.T) {
	d := newSmallDisk(t, 0)
	w, base := newWitness(), int64(1)
	for round := range 8 {
		d.fs.fill(int64(d.random.IntN(3000)))
		before := d.health.Failures()
		done := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- w.run(d.Store, uint64(round), done, func() {})
		}()
		for d.health.Failures() == before && len(ended) == 0 {
			runtime.Gosched()
		}
		d.fs.fill(3 << 20)
		close(done)
		for ok := false; !ok; {
			select {
			case err := <-ended:
				// The store refuses writes without a failure if it checks the space between fill and the first write.
				if ok = true; err != nil && !errors.Is(err, storage.ErrNoSpace) {
					t.Fatalf("round %d: %v", round, err)
				}
			default:
				d.clock.advance(time.Second)
				runtime.Gosched()
			}
		}
		d.retryUntil(func() error {
			err := w.check(d.Store, base)
			if compacted := (*storage.CompactedError)(nil); errors.As(err, &compacted) {
				base = compacted.Oldest
				err = storage.ErrUnavailable
			}
			return err
		}, storage.ErrUnavailable)
	}
	if d.health.Failures() == 0 {
		t.Error("no write has failed")
	}
}

// TestBlockedDisk checks commits on a disk that blocks. The commit in progress returns ErrInDoubt, and the next
// commit returns ErrUnavailable. When the disk continues, only the first commit becomes visible.
func TestBlockedDisk(t *testing.T) {
	d := newSmallDisk(t, 1)
	gate, timeout := make(chan struct{}), make(chan time.Time)
	d.fs.holdLogWrites(gate)
	d.timeout = timeout
	d.onWait = func(n int) {
		if n == 2 {
			close(timeout)
		}
	}
	results := make(chan error)
	go func() { results <- d.write(storage.Write{Key: "first", Value: []byte("1")}) }()
	for d.fs.waitingWrites() == 0 {
		runtime.Gosched()
	}
	go func() { results <- d.write(storage.Write{Key: "second", Value: []byte("1")}) }()
	doubts := 0
	for range 2 {
		switch err := <-results; {
		case errors.Is(err, storage.ErrInDoubt):
			doubts++
		case !errors.Is(err, storage.ErrUnavailable):
			t.Errorf("got %v, want ErrInDoubt or ErrUnavailable", err)
		}
	}
	if doubts != 1 {
		t.Errorf("%d commits are in doubt, want 1", doubts)
	}
	close(gate)
	d.fs.holdLogWrites(nil)
	if _, err := d.Wait(context.Background(), 2); err != nil {
		t.Fatal(err)
	}
	want(t, list(d.Head(), "", ""), "first=1@2/2")
}
