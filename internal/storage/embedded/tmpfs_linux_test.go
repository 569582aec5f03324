package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// realDisk returns a store on a file system of 48 MiB and its mount point. If usage is nil, the store reads the
// real usage.
func realDisk(t *testing.T, usage func() (free, size uint64, err error)) (d *smallDisk, dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("cannot mount a file system, which requires root: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	d = newSmallDisk(t, 0)
	o := d.options()
	o.Dir, o.FS, o.DiskUsage, o.memTable, o.recentBytes = filepath.Join(dir, "data"), nil, usage, 0, 0
	d.Store, d.disk = openWithDisk(t, o)
	return d, dir
}

// createLarge creates an object of 800 KiB.
func (d *smallDisk) createLarge() error {
	err := d.write(storage.Write{Key: fmt.Sprintf("k/%04d", d.created), Value: d.value(800 << 10)})
	if err == nil {
		d.created++
	}
	return err
}

// TestRealDiskThatIsNearlyFull checks a store on a real file system. The store fills it up to the reserve, and
// another program fills the rest. Then the store deletes all objects and fills the disk again.
func TestRealDiskThatIsNearlyFull(t *testing.T) {
	d, dir := realDisk(t, nil)
	e := d.disk.engine()
	// Without a compaction, the engine writes nothing in the background until the clock advances.
	e.PauseCompactions()
	for err := error(nil); err == nil; {
		if err = d.createLarge(); err != nil && !errors.Is(err, storage.ErrNoSpace) {
			t.Fatal(err)
		}
	}
	if d.created < 10 {
		t.Errorf("created %d objects, want at least 10", d.created)
	}
	// Flush the memtable, which needs space. The first deletion then creates a log file that the others fit into.
	if err := e.Read("the engine's files", e.DB.Flush); err != nil {
		t.Fatal(err)
	}
	if err := d.write(storage.Write{Key: "k/0000"}); err != nil {
		t.Fatal(err)
	}
	fillDisk(t, filepath.Join(dir, "ballast"))
	for i := 1; i < d.created; i++ {
		if err := d.write(storage.Write{Key: fmt.Sprintf("k/%04d", i)}); err != nil {
			t.Fatalf("deletion %d: %v", i, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		d.retryUntil(d.createLarge, storage.ErrNoSpace)
	}
	if n := d.health.Failures(); n > 0 {
		t.Errorf("the log failed %d times", n)
	}
}

// TestRealDiskThatIsFull checks a write that fails halfway on a real disk. The store does not expect this, because
// it gets a wrong disk usage. Once there is free space, the store continues. Then the write is present or absent,
// as its result has reported.
func TestRealDiskThatIsFull(t *testing.T) {
	d, dir := realDisk(t, func() (uint64, uint64, error) { return 1 << 40, 1 << 41, nil })
	fillDisk(t, filepath.Join(dir, "ballast"))
	results := make(chan error)
	go func() {
		for {
			err := d.createLarge()
			results <- err
			if err != nil || d.health.Failures() > 0 {
				return
			}
		}
	}()
	var err error
	for d.health.Failures() == 0 {
		select {
		case err = <-results:
		default:
			runtime.Gosched()
		}
	}
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	for ended := false; !ended; {
		select {
		case err = <-results:
			ended = true
		default:
			d.clock.advance(time.Second)
			runtime.Gosched()
		}
	}
	created := d.created
	if err != nil && !errors.Is(err, storage.ErrUnavailable) {
		t.Fatal(err)
	}
	d.retryUntil(d.createLarge, storage.ErrUnavailable)
	if n := d.Head().Count("k/", ""); n != created+1 {
		t.Errorf("%d objects are stored, want the %d acknowledged ones", n, created+1)
	}
}

// fillDisk creates a file that uses all the free space.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for piece := make([]byte, 64<<10); ; {
		if _, err := f.Write(piece); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
