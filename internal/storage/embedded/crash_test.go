package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// iterations returns how often a crash test runs. The environment variable CRASHTEST specifies the number, where 1
// means 10,000. If the variable is not set, the argument few is the number.
func iterations(few int) int {
	switch v := os.Getenv("CRASHTEST"); v {
	case "", "0":
		return few
	case "1":
		return 10000
	default:
		n, err := strconv.Atoi(v)
		if err != nil {
			panic("CRASHTEST is not a number: " + v)
		}
		return n
	}
}

// witness records the attempted and acknowledged writes across crashes.
type witness struct {
	mu          sync.Mutex
	attempted   map[string][]string // maps the name of a write (see writeName) to the names of all writes of its commit
	acked       map[int64]string    // descriptions of acknowledged events by revision
	newest      int64               // newest acknowledged revision
	number      int
	smallValues bool // do not write large values
}

func newWitness() *witness {
	return &witness{attempted: map[string][]string{}, acked: map[int64]string{}, newest: 1}
}

// describe renders an event in short form. Values begin with a unique number.
func describe(e *storage.Event) string {
	previous := int64(0)
	if e.Previous != nil {
		previous = e.Previous.Modified
	}
	if e.Record == nil {
		return fmt.Sprintf("%s- was %d", e.Key, previous)
	}
	return fmt.Sprintf("%s was %d", writeName(e.Key, e.Record.Value), previous)
}

// writeName returns a name for a write: key=number/size, or "key-" for a deletion.
func writeName(key string, value []byte) string {
	if value == nil {
		return key + "-"
	}
	number, rest, _ := bytes.Cut(value, []byte(" "))
	return fmt.Sprintf("%s=%s/%d", key, number, len(rest))
}

// plan creates a random commit on the head and records it as attempted.
func (w *witness) plan(s *logstore.Store, r *rand.Rand) []storage.Write {
	w.mu.Lock()
	defer w.mu.Unlock()
	var writes []storage.Write
	var names []string
	for i := range 1 + r.IntN(3)*r.IntN(2) {
		w.number++
		write := storage.Write{Key: fmt.Sprintf("k/%d/%d", i, r.IntN(8))}
		now := s.Head().Get(write.Key)
		if now != nil {
			write.Expected = now.Modified
		}
		if now == nil || r.IntN(5) > 0 {
			size := r.IntN(600)
			if !w.smallValues && r.IntN(20) == 0 {
				size = r.IntN(8000) // rare, because Pebble takes long to search a large torn chunk for the damage
			}
			write.Value = append(fmt.Appendf(nil, "%d ", w.number), bytes.Repeat([]byte{'x'}, size)...)
		}
		writes = append(writes, write)
		names = append(names, writeName(write.Key, write.Value))
	}
	for _, n := range names {
		w.attempted[n] = names
	}
	return writes
}

// markRefused records that the given writes were rejected and must never become visible.
func (w *witness) markRefused(writes []storage.Write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range writes {
		if writes[i].Value != nil { // the names of deletions are not unique
			delete(w.attempted, writeName(writes[i].Key, writes[i].Value))
		}
	}
}

// ack records acknowledged events.
func (w *witness) ack(events []*storage.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		w.acked[e.Revision] = describe(e)
		w.newest = max(w.newest, e.Revision)
	}
}

// run commits until done is closed or the store fails. It calls step after each commit.
func (w *witness) run(s *logstore.Store, seed uint64, done <-chan struct{}, step func()) error {
	r := rand.New(rand.NewPCG(seed, 2))
	for {
		select {
		case <-done:
			return nil
		default:
		}
		writes := w.plan(s, r)
		events, err := s.Commit(context.Background(), writes)
		conflict := (*storage.ConflictError)(nil)
		switch {
		case errors.Is(err, storage.ErrUnavailable):
			w.markRefused(writes)
		case err != nil && !errors.As(err, &conflict):
			return err
		}
		w.ack(events)
		step()
	}
}

// history reads all events of s after a revision.
func history(s *logstore.Store, after int64) ([]*storage.Event, error) {
	c, err := s.Watch(context.Background(), "", after)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var all []*storage.Event
	for head := s.Head().Revision(); ; {
		events, progress, err := c.Take(all)
		if err != nil || progress >= head {
			return events, err
		}
		all = events
	}
}

// check compares a recovered store with the recorded writes. It then adds all events of the store to the
// acknowledged ones. base is the oldest revision that can be read.
func (w *witness) check(s *logstore.Store, base int64) error {
	head := s.Head().Revision()
	if head < w.newest {
		return fmt.Errorf("revision %d was acknowledged, the store ends at %d", w.newest, head)
	}
	events, err := history(s, base)
	if err != nil {
		return fmt.Errorf("read the history: %w", err)
	}
	state, err := s.At(context.Background(), base)
	if err != nil {
		return err
	}
	now := map[string]*storage.Record{}
	for r := range state.Walk("", "") {
		now[r.Key] = r
	}
	present := map[string]bool{}
	for i, e := range events {
		if e.Revision != base+int64(i)+1 {
			return fmt.Errorf("revision %d follows %d", e.Revision, base+int64(i))
		}
		if show(e.Previous) != show(now[e.Key]) {
			return fmt.Errorf("the previous record of revision %d differs from the state before it", e.Revision)
		}
		if acked, ok := w.acked[e.Revision]; ok && acked != describe(e) {
			return fmt.Errorf("revision %d is %s, acknowledged was %s", e.Revision, describe(e), acked)
		}
		name, _, _ := strings.Cut(describe(e), " was ")
		if w.attempted[name] == nil {
			return fmt.Errorf("revision %d is %s, which was never written", e.Revision, name)
		}
		// If true, the other writes of the commit must be present too. A commit may begin before base, and the
		// names of deletions are not unique.
		present[name] = e.Revision > base+2 && e.Record != nil
		if now[e.Key] = e.Record; e.Record == nil {
			delete(now, e.Key)
		}
	}
	for name, whole := range present {
		for _, other := range w.attempted[name] {
			if _, found := present[other]; whole && !strings.HasSuffix(other, "-") && !found {
				return fmt.Errorf("%s was written, but %s of the same commit was not", name, other)
			}
		}
	}
	if err := sameState(s.Head(), now); err != nil {
		return err
	}
	w.ack(events)
	return nil
}

func sameState(s *storage.Snapshot, now map[string]*storage.Record) error {
	n := 0
	for r := range s.Walk("", "") {
		n++
		if show(r) != show(now[r.Key]) {
			return fmt.Errorf("the state and the history of %s differ", r.Key)
		}
	}
	if n != len(now) || n != s.Count("", "") {
		return fmt.Errorf("the state has %d records, the history results in %d", n, len(now))
	}
	return nil
}

// runAndCrash opens a store on fs, writes to it, and crashes it at a random time. It returns the disk after the
// crash. If killOnly is set, only the process ends, and the disk keeps unsynced data.
func (w *witness) runAndCrash(t *testing.T, fs *faultFS, base *int64, r *rand.Rand, killOnly bool) (*vfs.MemFS, error) {
	o := crashOptions(fs)
	killed := make(chan time.Time) // ends the commits of a killed process
	writeHeads := r.IntN(2) == 0   // write HEAD continuously, or not at all
	o.diskAfter = func(d time.Duration) <-chan time.Time {
		if d == headInterval && writeHeads {
			return firedTimer()
		}
		return nil
	}
	o.commitTimeout = func() <-chan time.Time { return killed }
	s, err := Open(o)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	defer s.Close()
	if err := w.check(s, *base); err != nil {
		return nil, err
	}
	if *base < s.Head().Revision() && r.IntN(3) == 0 {
		*base += r.Int64N(s.Head().Revision() - *base)
		if err := s.Compact(context.Background(), *base); err != nil {
			return nil, err
		}
		if err := w.check(s, *base); err != nil {
			return nil, fmt.Errorf("after compaction: %w", err)
		}
	}
	done := make(chan struct{})
	steps := make(chan struct{}, 1000)
	var writers sync.WaitGroup
	for range 1 + r.IntN(4) {
		seed := r.Uint64()
		writers.Go(func() {
			_ = w.run(s, seed, done, func() { // ends when done is closed or the process is killed
				select {
				case steps <- struct{}{}:
				default:
				}
			})
		})
	}
	for range r.IntN(60) {
		<-steps
	}
	mem := fs.FS.(*vfs.MemFS)
	w.mu.Lock() // the disk after the crash may lack commits acknowledged after this point
	left := mem
	if killOnly {
		fs.dead.Store(true)
		close(killed)
	} else {
		left = crash(t, mem, []int{0, 0, 10, 50, 90, 100}[r.IntN(6)], r)
	}
	acked := w.copyAcked()
	w.mu.Unlock()
	close(done)
	writers.Wait()
	w.restoreAcked(acked)
	return left, nil
}

// copyAcked returns a copy of the acknowledged events. After a crash, restoreAcked restores the copy. Events that
// were acknowledged after the copy may be missing on the disk. The caller holds mu.
func (w *witness) copyAcked() map[int64]string {
	c := make(map[int64]string, len(w.acked))
	for k, v := range w.acked {
		c[k] = v
	}
	return c
}

func (w *witness) restoreAcked(acked map[int64]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked, w.newest = acked, 1
	for k := range acked {
		w.newest = max(w.newest, k)
	}
}

func crashOptions(fs vfs.FS) Options {
	return Options{Dir: "/var/data", FS: fs, memTable: 64 << 10, recentBytes: 20 << 10}
}

// runAndCrashRepeatedly runs and crashes a store n times.
func runAndCrashRepeatedly(t *testing.T, seed uint64, n int, ignoreSync func(string, bool) bool) error {
	r := rand.New(rand.NewPCG(seed, 1))
	w := newWitness()
	disk := vfs.NewCrashableMem()
	base := int64(1)
	for i := range n {
		left, err := w.runAndCrash(t, &faultFS{FS: disk, ignoreSync: ignoreSync}, &base, r, r.IntN(8) == 0)
		if err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
		disk = left
	}
	s, err := Open(crashOptions(disk))
	if err != nil {
		return err
	}
	return errors.Join(w.check(s, base), s.Close())
}

// TestCrash checks stores after crashes. They contain all acknowledged commits, no others and no partial ones.
// Their history has no gap and no duplicate (CRD-071).
func TestCrash(t *testing.T) {
	const inARow = 10
	for seed := range uint64(iterations(300) / inARow) {
		if err := runAndCrashRepeatedly(t, seed, inARow, nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
