package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A container whose node ends before it knows of it never runs: otherwise the next node would start it twice.
func TestNodeEndsAtTheStart(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("makes a mount namespace")
	}
	folder := t.TempDir()
	trace := filepath.Join(folder, "trace")
	spec := Spec{
		Folder: folder, New: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Dir: "/", Shm: "/dev/shm",
		Program: "/bin/sh", Args: []string{"sh", "-c", "echo ran >" + trace},
	}
	for _, known := range []bool{false, true} {
		if err := WriteFile(filepath.Join(folder, SpecFile), spec); err != nil {
			t.Fatal(err)
		}
		cmd := again(shimName)
		cmd.Dir = folder
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err := start(cmd, func(int) error {
			var started Started
			if err := ReadFile(filepath.Join(folder, StartedFile), &started); err != nil || !started.Init.Alive() {
				t.Errorf("known %t: what is to be adopted: %v, %v", known, started, err)
			}
			if !known {
				return errors.New("killed")
			}
			return nil
		})
		cmd.Wait()
		var exit Exit
		if err := ReadFile(filepath.Join(folder, ExitFile), &exit); err != nil {
			t.Fatal(err)
		}
		_, missing := os.Stat(trace)
		if ran := missing == nil; ran != known || (exit.Code == 0) != known || (err == nil) != known {
			t.Errorf("known %t: ran %t, %v, %v", known, ran, exit, err)
		}
		if !known && !strings.Contains(exit.Message, "what started it has ended") {
			t.Errorf("message: %s", exit.Message)
		}
	}
}

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
		t.Error("it is opened")
	}
	if err := other.Signal(unix.SIGKILL); err != nil { // of this very process
		t.Error(err)
	}
}
