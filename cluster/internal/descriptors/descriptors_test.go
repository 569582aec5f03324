package descriptors

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKeep opens a file without close-on-exec. It checks that after CloseAllOnExec, a command inherits only the
// standard streams.
func TestKeep(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(key, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	list := func() string {
		out, err := exec.Command("sh", "-c", "readlink /proc/$$/fd/*; true").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if out := list(); !strings.Contains(out, key) {
		t.Fatalf("the descriptor is not inherited: %s", out)
	}
	if err := CloseAllOnExec(); err != nil {
		t.Fatal(err)
	}
	if out := strings.Fields(list()); len(out) != 3 {
		t.Errorf("got descriptors %v in a command, want the standard streams", out)
	}
}

// TestDrop checks that CloseInherited closes an inherited descriptor, and does not close a descriptor with
// close-on-exec.
func TestDrop(t *testing.T) {
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	inherited, err := unix.FcntlInt(uintptr(pipe[1]), unix.F_DUPFD, 500)
	if err != nil {
		t.Fatal(err)
	}
	if err := CloseInherited(inherited); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(inherited), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("inherited descriptor: got error %v, want EBADF", err)
	}
	opened, err := unix.FcntlInt(uintptr(pipe[1]), unix.F_DUPFD_CLOEXEC, 500)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(opened)
	if err := CloseInherited(opened); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(opened), unix.F_GETFD, 0); err != nil {
		t.Errorf("descriptor of this process is closed: %v", err)
	}
}
