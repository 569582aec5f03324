package embedded

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Each kind of sync is needed: a disk that ignores one loses data, and the crash
// test finds out (CRD-071).
func TestForgottenSyncIsNoticed(t *testing.T) {
	kinds := map[string]func(name string, dir bool) bool{
		"log":        func(name string, _ bool) bool { return strings.HasSuffix(name, ".log") },
		"tables":     func(name string, _ bool) bool { return strings.HasSuffix(name, ".sst") },
		"manifest":   func(name string, _ bool) bool { return strings.HasPrefix(path.Base(name), "MANIFEST") },
		"engine dir": func(name string, dir bool) bool { return dir && path.Base(name) == "engine" },
		"data dir":   func(name string, dir bool) bool { return dir && path.Base(name) == "data" },
		"parent dirs": func(name string, dir bool) bool {
			return dir && path.Base(name) != "data" && path.Base(name) != "engine"
		},
	}
	for kind, forget := range kinds {
		t.Run(kind, func(t *testing.T) {
			for seed := range uint64(60) {
				if err := lives(t, seed, 4, forget); err != nil {
					t.Log("found: ", err)
					return
				}
			}
			t.Error("nothing was lost")
		})
	}
}

// HEAD is durable when Close returns, and so is what it says (CRD-071).
func TestForgottenSyncOfHeadIsNoticed(t *testing.T) {
	kinds := map[string]func(name string, dir bool) bool{
		"none": nil,
		"file": func(name string, dir bool) bool { return path.Base(name) == "HEAD.new" },
		"name": func(name string, dir bool) bool { return dir && path.Base(name) == "data" },
	}
	for kind, forget := range kinds {
		t.Run(kind, func(t *testing.T) {
			disk := vfs.NewCrashableMem()
			o := crashOptions(disk)
			s := open(t, o) // the names of the directories are synced here
			put(t, s, "a", "1")
			s.Close()
			o.FS = &faultFS{FS: disk, forget: forget}
			s = open(t, o)
			put(t, s, "a", "2")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			o.FS = disk.CrashClone(vfs.CrashCloneCfg{})
			l, err := openDisk(withDefaults(o))
			if err == nil {
				defer l.Close()
			}
			if whole := err == nil && l.head.revision == 3; whole != (kind == "none") {
				t.Errorf("whole: %v, %v", whole, err)
			}
		})
	}
}

// flaky is a disk that fails writes now and then, and is repaired when the log has tried a
// few times to open the engine again.
type flaky struct {
	*faultFS
	mu      sync.Mutex
	random  *rand.Rand
	retries int
	mended  bool
}

// mend makes it a good disk.
func (f *flaky) mend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mended = true
	f.failAt.Store(0)
}

// pause is Options.pause.
func (f *flaky) pause(d time.Duration) <-chan time.Time {
	if d == checkInterval {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if d == headInterval {
		if at := f.failAt.Load(); !f.sticky.Load() && at > 0 && f.ops.Load() > at { // a write of HEAD may have met the failure
			f.failAt.Store(f.ops.Load() + 1 + f.random.Int64N(250))
		}
		return at()
	}
	if f.retries--; d != compactionDelay && f.retries <= 0 && !f.mended {
		f.retries = f.random.IntN(4)
		f.sticky.Store(f.random.IntN(2) == 0)
		f.failAt.Store(f.ops.Load() + 1 + f.random.Int64N(250))
	}
	return at()
}

// at is a time that has come.
func at() <-chan time.Time {
	now := make(chan time.Time)
	close(now)
	return now
}

// A disk fails now and then, once or for a while. What was acknowledged is there, what was refused
// is not and never will be, the tree is what is on disk, and writes go on without a restart: as
// long as the store is open and after a power failure (CRD-071).
func TestDiskThatFailsNowAndThen(t *testing.T) {
	failures := int64(0)
	for i := range min(iterations(25), 500) {
		r := rand.New(rand.NewPCG(uint64(i), 3))
		mem := vfs.NewCrashableMem()
		fs := &flaky{faultFS: &faultFS{FS: mem}, random: rand.New(rand.NewPCG(uint64(i), 5))}
		o := crashOptions(fs.faultFS)
		o.diskAfter, o.commitTimeout, o.Health = fs.pause, func() <-chan time.Time { return nil }, new(Health)
		s, err := Open(o)
		if err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		fs.failAt.Store(fs.ops.Load() + 1 + r.Int64N(200))
		w := newWitness()
		done := make(chan struct{})
		steps := 0
		err = w.work(s, uint64(i), done, func() {
			if steps++; steps == 300 {
				close(done)
			}
		})
		if err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		failures += o.Health.Failures()
		fs.mend()
		for err = w.check(s, 1); errors.Is(err, storage.ErrUnavailable); err = w.check(s, 1) {
			runtime.Gosched() // the store is about to be opened again
		}
		if err != nil {
			t.Fatalf("run %d: the open store: %v", i, err)
		}
		left := crash(t, mem, 50, r)
		if err := s.Close(); err != nil {
			t.Errorf("run %d: close: %v", i, err)
		}
		again := open(t, crashOptions(left))
		if err := w.check(again, 1); err != nil {
			t.Fatalf("run %d: after a power failure: %v", i, err)
		}
	}
	if failures < 50 {
		t.Errorf("the disk failed only %d times", failures)
	}
}

// A byte that flips anywhere is either without effect or reported; wrong data are
// never served (CRD-071).
func TestDamage(t *testing.T) {
	disk := vfs.NewCrashableMem()
	w := newWitness()
	w.small = true // the engine looks long for the bit that flipped in a large chunk
	r := rand.New(rand.NewPCG(1, 4))
	s := open(t, crashOptions(disk))
	for i := range 400 {
		events, err := s.Commit(context.Background(), w.plan(s, r))
		if err != nil {
			t.Fatal(err)
		}
		w.ack(events)
		if i == 300 {
			s.Close()
			s = open(t, crashOptions(disk))
		}
	}
	live := disk.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ended := disk.CrashClone(vfs.CrashCloneCfg{})
	t.Run("after an orderly end", func(t *testing.T) { damageAll(t, w, ended, r, true) })
	t.Run("after a crash", func(t *testing.T) { damageAll(t, w, live, r, false) })
}

// A file of the engine that is not there is damage, too, and is told with what to do.
func TestMissingFile(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s := open(t, crashOptions(disk))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := disk.List("/var/data/engine")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "MANIFEST-") {
			if err := disk.Remove("/var/data/engine/" + name); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err = Open(crashOptions(disk))
	var damage *DamageError
	if !errors.As(err, &damage) {
		t.Errorf("open without a manifest: %v", err)
	}
}

// damageAll flips bytes in each file of the data directory, one at a time.
func damageAll(t *testing.T, w *witness, disk *vfs.MemFS, r *rand.Rand, orderly bool) {
	reported := map[string]int{}
	for _, dir := range []string{"/var/data", "/var/data/engine"} {
		names, err := disk.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			kind := strings.TrimRight(name, ".0123456789-")
			if i := strings.LastIndexByte(name, '.'); i > 0 {
				kind = name[i:]
			}
			for range min(iterations(6), 500) {
				if damageOne(t, w, disk, dir+"/"+name, r, orderly) {
					reported[kind]++
				}
			}
		}
	}
	t.Log("reported: ", reported)
	for _, kind := range []string{".sst", ".log", "MANIFEST"} {
		if reported[kind] == 0 {
			t.Errorf("no damage of a %s file was reported", kind)
		}
	}
}

// damageOne flips a byte and says whether that was noticed.
func damageOne(t *testing.T, w *witness, disk *vfs.MemFS, name string, r *rand.Rand, orderly bool) bool {
	clone := disk.CrashClone(vfs.CrashCloneCfg{})
	info, err := clone.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if info.IsDir() || info.Size() == 0 {
		return false
	}
	data, err := clone.UnsafeGetFileDataBuffer(name)
	if err != nil {
		t.Fatal(err)
	}
	at := r.IntN(len(data))
	data[at] ^= byte(1 + r.IntN(255))
	s, err := Open(crashOptions(clone))
	if err != nil {
		return true
	}
	defer s.Close()
	acked, newest := w.acked, w.newest
	if !orderly { // a damaged end looks like one that the crash cut off
		w.newest = min(newest, s.Head().Revision())
	}
	err = w.check(s, 1)
	w.acked, w.newest = acked, newest
	var damage *DamageError
	if err != nil && !errors.As(err, &damage) {
		t.Errorf("byte %d of %s: %v", at, name, err)
	}
	return err != nil
}

// Whoever comes second is told so, and the first goes on (serve).
func TestInUse(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	s := open(t, o)
	put(t, s, "a", "1")
	_, err := Open(o)
	var used *InUseError
	if !errors.As(err, &used) {
		t.Fatalf("the second Open: %v", err)
	}
	put(t, s, "a", "2")
	want(t, list(s.Head(), "", ""), "a=2@2/3")
	if s.Close(); fmt.Sprint(err) == "" {
		t.Error("no message")
	}
	s = open(t, o)
	want(t, list(s.Head(), "", ""), "a=2@2/3")
}
