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

// realDisk is a store on a file system of 48 MiB. Without a usage it asks that.
func realDisk(t *testing.T, usage func() (free, size uint64, err error)) (d *smallDisk, dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("a file system cannot be mounted here, which needs root: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	d = newSmallDisk(t, 0)
	o := d.options()
	o.Dir, o.FS, o.DiskUsage, o.memTable, o.recentBytes = filepath.Join(dir, "data"), nil, usage, 0, 0
	d.Store = open(t, o)
	return d, dir
}

// large makes an object of 800 KiB.
func (d *smallDisk) large() error {
	err := d.write(storage.Write{Key: fmt.Sprintf("k/%04d", d.made), Value: d.value(800 << 10)})
	if err == nil {
		d.made++
	}
	return err
}

// The same on a real file system: it is filled with objects, to the last byte by others, emptied and filled again.
func TestRealDiskThatIsNearlyFull(t *testing.T) {
	d, dir := realDisk(t, nil)
	e := d.log.(*disk).engine()
	e.compactionBackoff.start(d.clock.After(compactionDelay)) // it does not compact, and so writes nothing by itself, until time passes
	for err := error(nil); err == nil; {
		if err = d.large(); err != nil && !errors.Is(err, storage.ErrNoSpace) {
			t.Fatal(err)
		}
	}
	if d.made < 10 {
		t.Errorf("only %d objects found room", d.made)
	}
	// What the engine holds in memory needs room. Then one deletion begins a log file, which has room for the others.
	if err := e.runDetached(e.db.Flush); err != nil {
		t.Fatal(err)
	}
	if err := d.write(storage.Write{Key: "k/0000"}); err != nil {
		t.Fatal(err)
	}
	takeAll(t, filepath.Join(dir, "ballast"))
	for i := 1; i < d.made; i++ {
		if err := d.write(storage.Write{Key: fmt.Sprintf("k/%04d", i)}); err != nil {
			t.Fatalf("a deletion: %v", err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		d.until(d.large, storage.ErrNoSpace)
	}
	if n := d.health.Failures(); n > 0 {
		t.Errorf("the log failed %d times", n)
	}
}

// A real write fails in the middle, for nobody has told how full the disk is. When there is room, it
// has either been done or not, as its answer says, and all goes on.
func TestRealDiskThatIsFull(t *testing.T) {
	d, dir := realDisk(t, func() (uint64, uint64, error) { return 1 << 40, 1 << 41, nil })
	takeAll(t, filepath.Join(dir, "ballast"))
	results := make(chan error)
	go func() {
		for {
			err := d.large()
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
	made := d.made
	if err != nil && !errors.Is(err, storage.ErrUnavailable) {
		t.Fatal(err)
	}
	d.until(d.large, storage.ErrUnavailable)
	if n := d.Head().Count("k/", ""); n != made+1 {
		t.Errorf("%d objects are there, %d were acknowledged", n, made+1)
	}
}

// takeAll makes a file of all the room that is left.
func takeAll(t *testing.T, path string) {
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
