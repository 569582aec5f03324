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
	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
)

// TestMissingSyncIsDetected checks that each kind of sync is necessary: on a disk that ignores it, the crash test
// finds a loss (CRD-071).
func TestMissingSyncIsDetected(t *testing.T) {
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
	for kind, ignoreSync := range kinds {
		t.Run(kind, func(t *testing.T) {
			for seed := range uint64(60) {
				if err := runAndCrashRepeatedly(t, seed, 4, ignoreSync); err != nil {
					t.Log("found: ", err)
					return
				}
			}
			t.Error("the crash test has found no loss")
		})
	}
}

// TestMissingSyncOfHeadIsDetected checks that HEAD and the revision in it are durable when Close returns (CRD-071).
func TestMissingSyncOfHeadIsDetected(t *testing.T) {
	kinds := map[string]func(name string, dir bool) bool{
		"none": nil,
		"file": func(name string, dir bool) bool { return path.Base(name) == "HEAD.new" },
		"name": func(name string, dir bool) bool { return dir && path.Base(name) == "data" },
	}
	for kind, ignoreSync := range kinds {
		t.Run(kind, func(t *testing.T) {
			disk := vfs.NewCrashableMem()
			o := crashOptions(disk)
			s := open(t, o) // syncs the names of the directories
			put(t, s, "a", "1")
			s.Close()
			o.FS = &faultFS{FS: disk, ignoreSync: ignoreSync}
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
			if whole := err == nil && l.head.Revision == 3; whole != (kind == "none") {
				t.Errorf("HEAD is complete: %v, %v", whole, err)
			}
		})
	}
}

// flakyFS is a disk on which random writes fail. It recovers after the log has tried several times to reopen the
// engine.
type flakyFS struct {
	*faultFS
	mu       sync.Mutex
	random   *rand.Rand
	retries  int
	repaired bool
}

// repair ends all failures.
func (f *flakyFS) repair() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.repaired = true
	f.failAt.Store(0)
}

// diskAfter implements Options.diskAfter.
func (f *flakyFS) diskAfter(d time.Duration) <-chan time.Time {
	if d == checkInterval {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if d == headInterval {
		// The failure may have affected a write of HEAD, which does not fail the engine. Set another one.
		if at := f.failAt.Load(); !f.sticky.Load() && at > 0 && f.ops.Load() > at {
			f.failAt.Store(f.ops.Load() + 1 + f.random.Int64N(250))
		}
		return firedTimer()
	}
	if f.retries--; d != engine.CompactionDelay && f.retries <= 0 && !f.repaired {
		f.retries = f.random.IntN(4)
		f.sticky.Store(f.random.IntN(2) == 0)
		f.failAt.Store(f.ops.Load() + 1 + f.random.Int64N(250))
	}
	return firedTimer()
}

// firedTimer returns a channel that receives at once.
func firedTimer() <-chan time.Time {
	now := make(chan time.Time)
	close(now)
	return now
}

// TestIntermittentDiskFailures checks a store on a disk that fails at random, once or for a while. The store
// contains all acknowledged commits and no rejected ones. The tree equals the content of the disk, and writes
// continue without a restart. This holds while the store is open and after a power failure (CRD-071).
func TestIntermittentDiskFailures(t *testing.T) {
	failures := int64(0)
	for i := range min(iterations(25), 500) {
		r := rand.New(rand.NewPCG(uint64(i), 3))
		mem := vfs.NewCrashableMem()
		fs := &flakyFS{faultFS: &faultFS{FS: mem}, random: rand.New(rand.NewPCG(uint64(i), 5))}
		o := crashOptions(fs.faultFS)
		o.diskAfter, o.commitTimeout, o.Health = fs.diskAfter, func() <-chan time.Time { return nil }, new(Health)
		s, err := Open(o)
		if err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		fs.failAt.Store(fs.ops.Load() + 1 + r.Int64N(200))
		w := newWitness()
		done := make(chan struct{})
		steps := 0
		err = w.run(s, uint64(i), done, func() {
			if steps++; steps == 300 {
				close(done)
			}
		})
		if err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		failures += o.Health.Failures()
		fs.repair()
		for err = w.check(s, 1); errors.Is(err, storage.ErrUnavailable); err = w.check(s, 1) {
			runtime.Gosched() // the store is being reopened
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
		t.Errorf("the disk failed %d times, want at least 50", failures)
	}
}

// TestDamage checks that a flipped byte anywhere has no effect or is reported. A store never returns wrong data
// (CRD-071).
func TestDamage(t *testing.T) {
	disk := vfs.NewCrashableMem()
	w := newWitness()
	w.smallValues = true // Pebble takes long to search a large chunk for the flipped bit
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
	t.Run("after Close", func(t *testing.T) { damageAll(t, w, ended, r, true) })
	t.Run("after a crash", func(t *testing.T) { damageAll(t, w, live, r, false) })
}

// TestMissingFile checks that a missing manifest is reported as a DamageError.
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
	var damage *engine.DamageError
	if !errors.As(err, &damage) {
		t.Errorf("open without a manifest: %v", err)
	}
}

// damageAll flips bytes in each file of the data directory, one at a time.
func damageAll(t *testing.T, w *witness, disk *vfs.MemFS, r *rand.Rand, closed bool) {
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
				if damageOne(t, w, disk, dir+"/"+name, r, closed) {
					reported[kind]++
				}
			}
		}
	}
	t.Log("reported: ", reported)
	for _, kind := range []string{".sst", ".log", "MANIFEST"} {
		if reported[kind] == 0 {
			t.Errorf("no damage to a %s file was reported", kind)
		}
	}
}

// damageOne flips a byte and reports whether the damage was detected.
func damageOne(t *testing.T, w *witness, disk *vfs.MemFS, name string, r *rand.Rand, closed bool) bool {
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
	if !closed { // damage at the end looks like the effect of a crash
		w.newest = min(newest, s.Head().Revision())
	}
	err = w.check(s, 1)
	w.acked, w.newest = acked, newest
	var damage *engine.DamageError
	if err != nil && !errors.As(err, &damage) {
		t.Errorf("byte %d of %s: %v", at, name, err)
	}
	return err != nil
}

// TestInUse checks that a second Open of a directory returns an InUseError, and that the first store continues to
// work (serve).
func TestInUse(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	s := open(t, o)
	put(t, s, "a", "1")
	_, err := Open(o)
	var inUse *InUseError
	if !errors.As(err, &inUse) {
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
