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

// TestKonnectivityPage runs the commands of examples/konnectivity/README.md as a reader does, in a separate network
// namespace. It uses kubectl, curl and the programs of Konnectivity. KON-004 KON-005 KON-006 KON-008 KON-012 KON-023
// KON-028 KON-030 KON-033 KON-034 KON-045 KON-049 KON-051 KON-054 KON-055
func TestKonnectivityPage(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute; skipped with -short")
	}
	if os.Getenv(ownNetwork) == "" {
		for _, program := range []string{"curl", "openssl"} {
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("no program %s: install it", program)
			}
		}
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	page, err := os.ReadFile("../../examples/konnectivity/README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := pageBlock.FindAllStringSubmatch(string(page), -1)
	if fences := strings.Count(string(page), "\n```"); len(blocks) < 10 || fences != 2*len(blocks) {
		t.Fatalf("%d fences, but %d blocks with a known language", fences, len(blocks))
	}
	r, output := newPageRunner(t), ""
	for _, b := range blocks {
		if b[1] != "text" {
			output = r.run(b[2], b[1] == "sh refused")
			continue
		}
		for line := range strings.Lines(b[2]) {
			if !strings.Contains(masked(output), strings.TrimSpace(masked(line))) {
				t.Fatalf("the page shows\n%sbut the output is\n%s", line, output)
			}
		}
	}
	if left, err := os.ReadDir(r.dir); err != nil || len(left) != 0 {
		t.Errorf("files left by the page: %v, %v", left, err)
	}
	r.checkProcessesEnded()
}

// pageRunner runs blocks of commands as one shell session: a block starts with the working directory and the exported
// variables of the previous block.
type pageRunner struct {
	*testing.T
	dir, session string
	env          []string
	blocks       []ranBlock
}

// ranBlock is a block whose shell has ended. Its background processes may still run.
type ranBlock struct {
	commands string
	ended    chan struct{} // closed when all its processes have ended
}

func newPageRunner(t *testing.T) *pageRunner {
	// The background processes of a block become children of this process, which can then wait for them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") })
	env = append(env, "HOME="+t.TempDir(), "PATH="+kubectlDir(t)+":"+os.Getenv("PATH"))
	return &pageRunner{T: t, dir: t.TempDir(), session: filepath.Join(t.TempDir(), "session"), env: env}
}

// run runs a block and returns its output. If refused is true, the last command must fail. Otherwise all commands
// must succeed. The background processes of the block are killed at the end of the test.
func (r *pageRunner) run(block string, refused bool) string {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), tunnelTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "-eu", "-c", "if [ -e \"$0\" ]; then . \"$0\"; fi\n"+block+
		"\n{ export -p; echo \"cd '$PWD'\"; } > \"$0\"", r.session)
	c.Dir, c.Env, c.SysProcAttr = r.dir, r.env, &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	out, err := c.CombinedOutput()
	r.Cleanup(func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
	ended := make(chan struct{})
	r.blocks = append(r.blocks, ranBlock{block, ended})
	go reap(c.Process.Pid, ended)
	if (err != nil) != refused {
		r.Fatalf("%srefused: %v, want %v\n%s", block, err, refused, out)
	}
	return string(out)
}

// reap waits for all processes of a process group, and then closes the channel ended.
func reap(group int, ended chan struct{}) {
	for {
		// An error means that the group has no more children of this process.
		if _, err := syscall.Wait4(-group, nil, 0, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			close(ended)
			return
		}
	}
}

// checkProcessesEnded checks that all processes of all blocks end.
func (r *pageRunner) checkProcessesEnded() {
	r.Helper()
	deadline := time.After(tunnelTimeout)
	for _, b := range r.blocks {
		select {
		case <-b.ended:
		case <-deadline:
			r.Fatalf("processes of this block still run:\n%s", b.commands)
		}
	}
}
