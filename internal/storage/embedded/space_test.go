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
)

// smallDisk is a store on a disk of 4 MiB, with a clock of its own.
type smallDisk struct {
	*Store
	t      *testing.T
	fs     *smallFS
	clock  *clock
	health *Health
	random *rand.Rand
	made   int

	waiting func(n int) // called when the n-th commit waits
	waited  atomic.Int64
	tired   chan time.Time // what they wait for
}

const smallSize = 4 << 20

func newSmallDisk(t *testing.T, reserve int64) *smallDisk {
	d := &smallDisk{t: t, fs: newSmallFS(smallSize), clock: newClock(), health: new(Health), random: rand.New(rand.NewPCG(1, 1))}
	o := d.options()
	o.Reserve = reserve
	d.Store = open(t, o)
	return d
}

func (d *smallDisk) options() Options {
	o := crashOptions(d.fs)
	o.CompactAfter = 1e6 * time.Hour
	o.DiskUsage, o.Health, o.Now, o.After, o.diskAfter = d.fs.usage, d.health, d.clock.Now, d.clock.After, d.clock.After
	o.commitTimeout = func() <-chan time.Time {
		if d.waiting != nil {
			d.waiting(int(d.waited.Add(1)))
		}
		return d.tired
	}
	return o
}

// value is n bytes that cannot be made smaller.
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

// create makes an object of 16 KiB.
func (d *smallDisk) create() error {
	err := d.write(storage.Write{Key: fmt.Sprintf("k/%04d", d.made), Value: d.value(16 << 10)})
	if err == nil {
		d.made++
	}
	return err
}

// fill creates objects until there is no room.
func (d *smallDisk) fill() {
	d.t.Helper()
	for {
		switch err := d.create(); {
		case errors.Is(err, storage.ErrNoSpace):
			return
		case err != nil:
			d.t.Fatalf("object %d: %v", d.made, err)
		case d.made > 2*smallSize/(16<<10):
			d.t.Fatal("the disk is never full")
		}
	}
}

// until lets time pass until do has no error; wait are those it may have until then.
func (d *smallDisk) until(do func() error, wait ...error) {
	d.t.Helper()
	for {
		err := do()
		if err == nil {
			return
		}
		expected := false
		for _, w := range wait {
			expected = expected || errors.Is(err, w)
		}
		if !expected {
			d.t.Fatal(err)
		}
		d.clock.advance(time.Second)
		runtime.Gosched()
	}
}

// Below the reserve what is new is refused, what makes room and what is small goes on, and
// once room has been made so does the rest; the disk is never full (CRD-071).
func TestDiskThatIsNearlyFull(t *testing.T) {
	d := newSmallDisk(t, 0)
	d.fill()
	if d.made < 30 {
		t.Errorf("only %d objects found room", d.made)
	}
	if err := d.health.Err(); err == nil || strings.Contains(err.Error(), "/var") {
		t.Errorf("what /readyz is told: %v", err)
	}
	if n := d.fs.failedWrites(); n > 0 {
		t.Errorf("the disk was full %d times", n)
	}
	for i := range d.made / 2 {
		if err := d.write(storage.Write{Key: fmt.Sprintf("k/%04d", i)}); err != nil {
			t.Fatalf("deletion %d: %v", i, err)
		}
	}
	d.until(d.create, storage.ErrNoSpace)
	d.until(d.health.Err, d.health.Err())
	if n := d.health.Failures(); n > 0 {
		t.Errorf("the log failed %d times", n)
	}
	d.fill()
}

// What is written in which part of the reserve.
func TestReserve(t *testing.T) {
	const free, lacks, lacksMuch = 2 << 20, 800 << 10, 300 << 10
	d := newSmallDisk(t, 1<<20)
	d.fs.reportFree(free)
	old := d.value(16 << 10)
	for _, c := range []struct {
		name            string
		write           storage.Write
		lack, lacksMuch bool // allowed
	}{
		{name: "a new object", write: storage.Write{Key: "new", Value: []byte("1")}},
		{name: "an update that needs room", write: storage.Write{Key: "a", Value: append(bytes.Clone(old), make([]byte, smallGrowth+1)...)}},
		{name: "an update that needs little", write: storage.Write{Key: "a", Value: append(bytes.Clone(old), make([]byte, smallGrowth)...)}, lack: true},
		{name: "an update that makes it smaller", write: storage.Write{Key: "a", Value: []byte("1")}, lack: true},
		{name: "a deletion", write: storage.Write{Key: "a"}, lack: true, lacksMuch: true},
	} {
		for room, allowed := range map[int64]bool{free: true, lacks: c.lack, lacksMuch: c.lacksMuch} {
			d.fs.reportFree(free)
			if err := d.write(storage.Write{Key: "a", Value: old}); err != nil {
				t.Fatal(err)
			}
			d.fs.reportFree(room)
			d.until(func() error { return d.seen(room) }, errNotSeen)
			if err := d.write(c.write); allowed && err != nil || !allowed && !errors.Is(err, storage.ErrNoSpace) {
				t.Errorf("%s, %d bytes free: %v", c.name, room, err)
			}
			d.fs.reportFree(free)
			d.until(func() error { return d.seen(free) }, errNotSeen)
			if d.Head().Get("new") != nil {
				if err := d.write(storage.Write{Key: "new"}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// While room is scarce, the engine gives back what has been deleted, as soon as the short history is over.
func TestDeletionsMakeRoom(t *testing.T) {
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
	d.until(func() error { return d.seen(800 << 10) }, errNotSeen)
	for i := range 30 {
		if err := d.write(storage.Write{Key: fmt.Sprintf("k/%04d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	d.until(func() error {
		if used := smallSize - d.fs.freeBytes(); used > 2*16<<10 {
			return errNotSeen
		}
		return nil
	}, errNotSeen)
}

// A compaction that finds no room is tried again later, and the log goes on.
func TestCompactionWithoutRoom(t *testing.T) {
	d := newSmallDisk(t, 1)
	d.fs.refuse(compactionFiles)
	for d.fs.failedWrites() == 0 {
		if err := d.create(); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.create(); err != nil {
		t.Fatal(err)
	}
	d.fs.refuse("")
	d.until(func() error {
		if d.fs.compacted() == 0 {
			return errNotSeen
		}
		return nil
	}, errNotSeen)
	if n := d.health.Failures(); n > 0 {
		t.Errorf("the log failed %d times", n)
	}
}

var errNotSeen = errors.New("the log has not looked yet")

// seen says whether the log knows how much is free.
func (d *smallDisk) seen(free int64) error {
	if known, _ := d.health.FreeSpace(); known != free {
		return errNotSeen
	}
	return nil
}

// The room that is kept free goes by the disk and by what is stored.
func TestReserveByItself(t *testing.T) {
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
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// One commit of many that come together has no room: the others are written.
func TestRoomIsJudgedForEachCommit(t *testing.T) {
	d := newSmallDisk(t, 1<<20)
	for range 21 {
		if err := d.create(); err != nil {
			t.Fatal(err)
		}
	}
	d.fs.reportFree(800 << 10)
	d.until(func() error { return d.seen(800 << 10) }, errNotSeen)
	const pairs = 20
	all := make(chan struct{})
	d.waiting = func(n int) {
		if n == 1+2*pairs {
			close(all)
		}
	}
	d.fs.hold(all) // the first one keeps the log busy until the others have queued up
	results := make(chan error)
	go func() { results <- d.write(storage.Write{Key: "k/0000"}) }()
	for d.fs.waitingWrites() == 0 {
		runtime.Gosched()
	}
	for i := range pairs {
		go func() { results <- d.write(storage.Write{Key: fmt.Sprintf("k/%04d", i+1)}) }()
		go func() {
			_, err := d.Commit(context.Background(), []storage.Write{{Key: fmt.Sprintf("n/%d", i), Value: make([]byte, 100)}})
			if !errors.Is(err, storage.ErrNoSpace) {
				t.Errorf("a new object: %v", err)
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

// Others fill the disk to the last byte, and a write fails in the middle. When they have made
// room, the store writes again, and has what it should.
func TestDiskThatIsFull(t *testing.T) {
	d := newSmallDisk(t, 0)
	w, base := newWitness(), int64(1)
	for round := range 8 {
		d.fs.fill(int64(d.random.IntN(3000)))
		before := d.health.Failures()
		done := make(chan struct{})
		ended := make(chan error)
		go func() {
			ended <- w.work(d.Store, uint64(round), done, func() {})
		}()
		for d.health.Failures() == before {
			runtime.Gosched()
		}
		d.fs.fill(3 << 20)
		close(done)
		for ok := false; !ok; {
			select {
			case err := <-ended:
				if ok = true; err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
			default:
				d.clock.advance(time.Second)
				runtime.Gosched()
			}
		}
		d.until(func() error {
			err := w.check(d.Store, base)
			if compacted := (*storage.CompactedError)(nil); errors.As(err, &compacted) {
				base = compacted.Oldest
				err = storage.ErrUnavailable
			}
			return err
		}, storage.ErrUnavailable)
	}
}

// A disk that stands still: who waits for the commit that is on its way is told that its end is
// not known, who waits behind it that nothing was written, and both are right.
func TestDiskThatStandsStill(t *testing.T) {
	d := newSmallDisk(t, 1)
	gate, tired := make(chan struct{}), make(chan time.Time)
	d.fs.hold(gate)
	d.tired = tired
	d.waiting = func(n int) {
		if n == 2 {
			close(tired)
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
			t.Errorf("what was said: %v", err)
		}
	}
	if doubts != 1 {
		t.Errorf("%d commits are in doubt", doubts)
	}
	close(gate)
	d.fs.hold(nil)
	if _, err := d.Wait(context.Background(), 2); err != nil {
		t.Fatal(err)
	}
	want(t, list(d.Head(), "", ""), "first=1@2/2")
}
