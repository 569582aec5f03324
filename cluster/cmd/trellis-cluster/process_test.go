package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// The test's own program is trellis-cluster and kube-scheduler, by these names, and what Pods run.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "trellis-cluster", "kube-scheduler":
		main()
	case echoServer:
		serveEcho()
	case "web":
		serveWeb()
	case "refuses":
		serveDenyingWebhook()
	}
	if len(os.Args) > 1 && slices.Contains([]string{"controllers", "scheduler", "node"}, os.Args[1]) { // as up starts them
		main()
	}
	if os.Geteuid() == 0 {
		isolateNetwork()
	}
	os.Exit(m.Run())
}

// process is a running program.
type process struct {
	*testing.T
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has, with all that it said in lines

	mu    sync.Mutex
	lines []string
	changed  chan struct{} // closed when there is another line
}

// program is the file that is run as trellis-cluster or kube-scheduler: this test's own, or the real scheduler.
func program(t *testing.T, name string) string {
	t.Helper()
	if peers := os.Getenv("TEST_PEERS"); peers != "" && name == "kube-scheduler" {
		return filepath.Join(peers, name)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

// startProgram starts trellis-cluster or kube-scheduler, by a link of that name. It is killed at the end of the test.
func startProgram(t *testing.T, name string, args ...string) *process {
	t.Helper()
	link := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(program(t, name), link); err != nil {
		t.Fatal(err)
	}
	return startCommand(t, exec.Command(link, args...))
}

// startCommand starts a command, which is killed at the end of the test.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{T: t, cmd: cmd, ended: make(chan struct{}), changed: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "KUBECONFIG=")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a shell does
	r, w := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var read sync.WaitGroup
	read.Go(func() { p.read(r) })
	go func() {
		_ = p.cmd.Wait() // ProcessState has it
		w.Close()
		read.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%v:\n%s", cmd.Args, p.output())
		}
	})
	return p
}

func (p *process) read(r io.Reader) {
	for s := bufio.NewScanner(r); s.Scan(); {
		p.mu.Lock()
		p.lines = append(p.lines, strings.ReplaceAll(s.Text(), `\"`, `"`)) // klog quotes errors
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// waitForOutput returns when as many lines have all of the words.
func (p *process) waitForOutput(times int, words ...string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), testTimeout)
	defer cancel()
	for {
		p.mu.Lock()
		count := 0
		for _, line := range p.lines {
			if hasAll(line, words) {
				count++
			}
		}
		more := p.changed
		p.mu.Unlock()
		if count >= times {
			return
		}
		select {
		case <-more:
		case <-p.ended:
			p.Fatalf("it has ended without saying %q", words)
		case <-ctx.Done():
			p.Fatalf("it does not say %q", words)
		}
	}
}

func hasAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// terminate asks it to end, and returns its exit code.
func (p *process) terminate() int {
	p.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.Fatal(err)
	}
	return p.wait()
}

// interrupt asks it to end as a terminal does: it, and all that is in the foreground with it. It returns its exit code.
func (p *process) interrupt() int {
	p.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT); err != nil {
		p.Fatal(err)
	}
	return p.wait()
}

// kill ends it as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// wait waits for its end, and returns its exit code.
func (p *process) wait() int {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), testTimeout)
	defer cancel()
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.Fatal("it does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}
