package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPageOfKonnectivity types the chapter about one machine as one who reads it does, in a network of its own. KON-004
// KON-005 KON-006 KON-008 KON-012 KON-023 KON-028 KON-030 KON-033 KON-034 KON-045 KON-049 KON-051 KON-054 KON-055, by
// kubectl, curl and the programs.
func TestPageOfKonnectivity(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute; left out with -short")
	}
	if os.Getenv(ownNetwork) == "" {
		for _, program := range []string{"curl", "openssl"} {
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("there is no %s: install it", program)
			}
		}
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	text, err := os.ReadFile("../../docs/reach.md")
	if err != nil {
		t.Fatal(err)
	}
	_, chapter, found := strings.Cut(string(text), "\n## Konnectivity on one machine\n")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	blocks := pageBlock.FindAllStringSubmatch(chapter, -1)
	if fences := strings.Count(chapter, "\n```"); !found || len(blocks) < 10 || fences != 2*len(blocks) {
		t.Fatalf("%d fences, %d blocks are understood", fences, len(blocks))
	}
	r, said := newReader(t), ""
	for _, b := range blocks {
		if b[1] != "text" {
			said = r.types(b[2], b[1] == "sh refused")
			continue
		}
		for line := range strings.Lines(b[2]) {
			if !strings.Contains(masked(said), strings.TrimSpace(masked(line))) {
				t.Fatalf("the page shows\n%sbut it is\n%s", line, said)
			}
		}
	}
	if left, err := os.ReadDir(r.dir); err != nil || len(left) != 0 {
		t.Errorf("the page leaves %v, %v", left, err)
	}
	r.allHaveEnded()
}

// reader types blocks of commands. A folder that one goes to, and a variable that it exports, are those of the next as
// well.
type reader struct {
	*testing.T
	dir, session string
	env          []string
	typed        []typed
}

// typed is a block that has ended, and what may have been left running.
type typed struct {
	block string
	ended chan struct{} // closed when none of its processes is left
}

func newReader(t *testing.T) *reader {
	// what a block leaves running is this process's to wait for
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") })
	env = append(env, "HOME="+t.TempDir(), "PATH="+kubectlDir(t)+":"+os.Getenv("PATH"))
	return &reader{T: t, dir: t.TempDir(), session: filepath.Join(t.TempDir(), "session"), env: env}
}

// types types a block, of which the last command is refused or none, and returns what it prints. What it leaves running
// ends with the test.
func (r *reader) types(block string, refused bool) string {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), tunnelPatience)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "-eu", "-c", "if [ -e \"$0\" ]; then . \"$0\"; fi\n"+block+
		"\n{ export -p; echo \"cd '$PWD'\"; } > \"$0\"", r.session)
	c.Dir, c.Env, c.SysProcAttr = r.dir, r.env, &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	out, err := c.CombinedOutput()
	r.Cleanup(func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
	ended := make(chan struct{})
	r.typed = append(r.typed, typed{block, ended})
	go reap(c.Process.Pid, ended)
	if (err != nil) != refused {
		r.Fatalf("%srefused: %v, want %v\n%s", block, err, refused, out)
	}
	return string(out)
}

// reap waits until no process of a group is left.
func reap(group int, ended chan struct{}) {
	for {
		// there is no other child in it
		if _, err := syscall.Wait4(-group, nil, 0, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			close(ended)
			return
		}
	}
}

// allHaveEnded expects that nothing which a block has started goes on.
func (r *reader) allHaveEnded() {
	r.Helper()
	deadline := time.After(tunnelPatience)
	for _, b := range r.typed {
		select {
		case <-b.ended:
		case <-deadline:
			r.Fatalf("the page leaves processes running, which this has started:\n%s", b.block)
		}
	}
}
