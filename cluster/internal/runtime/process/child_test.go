package process

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNodeEndsDuringStart checks that a container's command never runs if the node ends before it has recorded the
// container. Otherwise the next node would start the command again. The shim must then leave neither StartedFile nor
// ExitFile, because the command has neither started nor ended.
func TestNodeEndsDuringStart(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make a mount namespace")
	}
	folder := t.TempDir()
	marker := filepath.Join(folder, "trace")
	spec := Spec{
		Folder: folder, New: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Dir: "/", Shm: "/dev/shm",
		Program: "/bin/sh", Args: []string{"sh", "-c", "echo ran >" + marker},
	}
	for _, recorded := range []bool{false, true} {
		if err := WriteFile(filepath.Join(folder, SpecFile), spec); err != nil {
			t.Fatal(err)
		}
		cmd := selfCommand(shimName)
		cmd.Dir = folder
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err := startChild(cmd, func(int) error {
			var started Started
			if err := ReadFile(filepath.Join(folder, StartedFile), &started); err != nil || !started.Init.Alive() {
				t.Errorf("recorded %t: got started %v, %v; want a running init", recorded, started, err)
			}
			if !recorded {
				return errors.New("killed")
			}
			return nil
		})
		cmd.Wait()
		if (err == nil) != recorded {
			t.Errorf("recorded %t: got error %v", recorded, err)
		}
		for _, file := range []string{marker, filepath.Join(folder, StartedFile), filepath.Join(folder, ExitFile)} {
			if _, missing := os.Stat(file); (missing == nil) != recorded {
				t.Errorf("recorded %t: %s exists: %t", recorded, filepath.Base(file), missing == nil)
			}
		}
		var exit Exit
		if err := ReadFile(filepath.Join(folder, ExitFile), &exit); recorded && (err != nil || exit.Code != 0) {
			t.Errorf("got exit %v, %v; want code 0", exit, err)
		}
	}
}

// TestIDs checks that an ID identifies no process if the process with its PID has another start time.
func TestIDs(t *testing.T) {
	self, err := Identify(os.Getpid())
	if err != nil || !self.Alive() {
		t.Fatal(self, err)
	}
	other := ID{PID: self.PID, Start: self.Start + "0"}
	if other.Alive() {
		t.Error("a process that started at another time is alive")
	}
	if _, err := other.Open(); err == nil {
		t.Error("Open succeeds for a process with another start time")
	}
	if err := other.Signal(unix.SIGKILL); err != nil { // must not reach this process, although it has the same PID
		t.Error(err)
	}
}
