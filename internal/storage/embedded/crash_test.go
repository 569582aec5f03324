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
)

// iterations is how often a crash test runs: 10,000 times with CRASHTEST=1 (or as
// often as CRASHTEST says), else few.
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

// witness remembers what was tried and what was acknowledged, across crashes.
type witness struct {
	mu     sync.Mutex
	tried  map[string][]string // "key=value" or "key-" for a deletion, to all writes of that commit
	acked  map[int64]string    // by revision
	newest int64               // acknowledged
	number int
	small  bool // no large values
}

func newWitness() *witness {
	return &witness{tried: map[string][]string{}, acked: map[int64]string{}, newest: 1}
}

// brief renders an event short; values begin with a unique number.
func brief(e *storage.Event) string {
	was := int64(0)
	if e.Previous != nil {
		was = e.Previous.Modified
	}
	if e.Record == nil {
		return fmt.Sprintf("%s- was %d", e.Key, was)
	}
	return fmt.Sprintf("%s was %d", attempt(e.Key, e.Record.Value), was)
}

// attempt names a write.
func attempt(key string, value []byte) string {
	if value == nil {
		return key + "-"
	}
	number, rest, _ := bytes.Cut(value, []byte(" "))
	return fmt.Sprintf("%s=%s/%d", key, number, len(rest))
}

// plan makes up a commit against the head and notes it.
func (w *witness) plan(s *Store, r *rand.Rand) []storage.Write {
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
			if !w.small && r.IntN(20) == 0 {
				size = r.IntN(8000) // the engine looks long for what is wrong with a large torn piece
			}
			write.Value = append(fmt.Appendf(nil, "%d ", w.number), bytes.Repeat([]byte{'x'}, size)...)
		}
		writes = append(writes, write)
		names = append(names, attempt(write.Key, write.Value))
	}
	for _, n := range names {
		w.tried[n] = names
	}
	return writes
}

// refused notes that writes must never be seen.
func (w *witness) refused(writes []storage.Write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range writes {
		if writes[i].Value != nil { // else the name is not unique
			delete(w.tried, attempt(writes[i].Key, writes[i].Value))
		}
	}
}

// ack notes what was acknowledged.
func (w *witness) ack(events []*storage.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		w.acked[e.Revision] = brief(e)
		w.newest = max(w.newest, e.Revision)
	}
}

// work commits until done is closed or the store fails.
func (w *witness) work(s *Store, seed uint64, done <-chan struct{}, step func()) error {
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
			w.refused(writes)
		case err != nil && !errors.As(err, &conflict):
			return err
		}
		w.ack(events)
		step()
	}
}

// history reads all that s remembers.
func history(s *Store, after int64) ([]*storage.Event, error) {
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

// check compares a recovered store with what is known, and takes what it holds
// for granted from now on. base is the oldest revision that may be asked for.
func (w *witness) check(s *Store, base int64) error {
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
			return fmt.Errorf("revision %d replaces something else than what was there", e.Revision)
		}
		if acked, ok := w.acked[e.Revision]; ok && acked != brief(e) {
			return fmt.Errorf("revision %d is %s, acknowledged was %s", e.Revision, brief(e), acked)
		}
		name, _, _ := strings.Cut(brief(e), " was ")
		if w.tried[name] == nil {
			return fmt.Errorf("revision %d is %s, which nobody wrote", e.Revision, name)
		}
		present[name] = e.Revision > base+2 && e.Record != nil // else its commit may begin before base, or its name is not unique
		if now[e.Key] = e.Record; e.Record == nil {
			delete(now, e.Key)
		}
	}
	for name, whole := range present {
		for _, other := range w.tried[name] {
			if _, found := present[other]; whole && !strings.HasSuffix(other, "-") && !found {
				return fmt.Errorf("%s was written and %s of the same commit was not", name, other)
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
			return fmt.Errorf("the state and the history differ about %s", r.Key)
		}
	}
	if n != len(now) || n != s.Count("", "") {
		return fmt.Errorf("the state has %d records, the history says %d", n, len(now))
	}
	return nil
}

// life runs a store on fs under load and crashes it some time; it returns what is
// left of the disk. kill ends the process only, so that nothing unsynced is lost
// yet.
func (w *witness) life(t *testing.T, fs *faultFS, base *int64, r *rand.Rand, killOnly bool) (*vfs.MemFS, error) {
	o := crashOptions(fs)
	killed := make(chan time.Time) // nobody waits for what becomes of a killed process
	renew := r.IntN(2) == 0        // HEAD, all the time
	o.diskAfter = func(d time.Duration) <-chan time.Time {
		if d == headInterval && renew {
			return at()
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
	enough := make(chan struct{}, 1000)
	var writers sync.WaitGroup
	for range 1 + r.IntN(4) {
		seed := r.Uint64()
		writers.Go(func() {
			_ = w.work(s, seed, done, func() { // ends by done, or by the kill
				select {
				case enough <- struct{}{}:
				default:
				}
			})
		})
	}
	for range r.IntN(60) {
		<-enough
	}
	mem := fs.FS.(*vfs.MemFS)
	w.mu.Lock() // what is not acknowledged by now may be lost
	left := mem
	if killOnly {
		fs.dead.Store(true)
		close(killed)
	} else {
		left = crash(t, mem, []int{0, 0, 10, 50, 90, 100}[r.IntN(6)], r)
	}
	acked := w.freeze()
	w.mu.Unlock()
	close(done)
	writers.Wait()
	w.thaw(acked)
	return left, nil
}

// freeze returns a copy of what is acknowledged, and thaw goes back to it: what
// was acknowledged after a crash was so on a disk that is no more. The caller of
// freeze holds mu.
func (w *witness) freeze() map[int64]string {
	c := make(map[int64]string, len(w.acked))
	for k, v := range w.acked {
		c[k] = v
	}
	return c
}

func (w *witness) thaw(acked map[int64]string) {
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

// lives crashes a store some times in a row.
func lives(t *testing.T, seed uint64, n int, forget func(string, bool) bool) error {
	r := rand.New(rand.NewPCG(seed, 1))
	w := newWitness()
	disk := vfs.NewCrashableMem()
	base := int64(1)
	for i := range n {
		left, err := w.life(t, &faultFS{FS: disk, forget: forget}, &base, r, r.IntN(8) == 0)
		if err != nil {
			return fmt.Errorf("life %d: %w", i+1, err)
		}
		disk = left
	}
	s, err := Open(crashOptions(disk))
	if err != nil {
		return err
	}
	return errors.Join(w.check(s, base), s.Close())
}

// Nothing acknowledged is lost by a crash, nothing is invented, no commit is torn,
// and the history has neither gap nor repeat (CRD-071).
func TestCrash(t *testing.T) {
	const inARow = 10
	for seed := range uint64(iterations(300) / inARow) {
		if err := lives(t, seed, inARow, nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
