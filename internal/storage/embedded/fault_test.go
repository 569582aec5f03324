package embedded

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

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
			l, err := openDisk(quiet(o))
			if err != nil {
				t.Fatal(err)
			}
			_, err = l.Load(func(*storage.Record) error { return nil })
			if whole := err == nil && l.marked == 3; whole != (kind == "none") {
				t.Errorf("HEAD says %d, %v", l.marked, err)
			}
		})
	}
}

// A write that the disk refuses is not acknowledged and never visible, later ones
// fail with a clear error, reads go on, and a start on the repaired disk finds all
// that was acknowledged (CRD-071).
func TestDiskThatFails(t *testing.T) {
	failed := 0
	for i := range min(iterations(80), 2000) {
		r := rand.New(rand.NewPCG(uint64(i), 3))
		disk := vfs.NewCrashableMem()
		w := newWitness()
		fs := &faultFS{FS: disk, failAt: 1 + r.Int64N(200), sticky: r.IntN(2) == 0}
		s, err := Open(crashOptions(fs))
		if err == nil {
			err = w.work(s, uint64(i), make(chan struct{}), func() {
				if w.number > 2000 {
					fs.dead.Store(true)
				}
			})
			if !errors.Is(err, storage.ErrFailed) || !errors.Is(err, errDisk) {
				t.Fatalf("run %d: the error is %v", i, err)
			}
			failed++
			if head := s.Head().Revision(); head != w.newest {
				t.Fatalf("run %d: the head is at %d, %d was acknowledged", i, head, w.newest)
			}
			if _, err := s.Commit(context.Background(), []storage.Write{{Key: "late", Value: []byte("1")}}); !errors.Is(err, storage.ErrFailed) {
				t.Fatalf("run %d: a later commit: %v", i, err)
			}
			if err := s.Failed(); !errors.Is(err, storage.ErrFailed) {
				t.Fatalf("run %d: what /livez is told: %v", i, err)
			}
			if _, err := s.At(context.Background(), s.Head().Revision()); err != nil {
				t.Fatalf("run %d: a read: %v", i, err)
			}
			s.Close()
		}
		left, err := Open(crashOptions(crash(t, disk, 50, r)))
		if err != nil {
			t.Fatalf("run %d: open: %v", i, err)
		}
		if err := w.check(left, 1); err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		left.Close()
	}
	if failed < 40 {
		t.Errorf("only %d runs came as far as to fail in a commit", failed)
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
