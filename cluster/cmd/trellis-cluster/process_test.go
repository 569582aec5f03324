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

// TestMain runs the tests. If the test binary is started under another name, it instead runs trellis-cluster,
// kube-scheduler or a program for Pods.
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
	if len(os.Args) > 1 && slices.Contains([]string{"controllers", "scheduler", "node"}, os.Args[1]) { // a child of up
		main()
	}
	if os.Geteuid() == 0 {
		isolateNetwork()
	}
	var err error
	if programsDir, err = os.MkdirTemp("", "trellis-programs-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(programsDir)
	os.Exit(code)
}

// process is a running program.
type process struct {
	*testing.T
	cmd   *exec.Cmd
	ended chan struct{} // closed when the program has exited and the field lines contains all its output

	mu      sync.Mutex
	lines   []string
	changed chan struct{} // closed when a line is added
}

// program returns the file to run as trellis-cluster or kube-scheduler. This is the test binary. If TEST_PEERS is set,
// it is upstream's binary for kube-scheduler.
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

// startProgram starts trellis-cluster or kube-scheduler through a link of that name. The program is killed at the end
// of the test.
func startProgram(t *testing.T, name string, args ...string) *process {
	t.Helper()
	link := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(program(t, name), link); err != nil {
		t.Fatal(err)
	}
	return startCommand(t, exec.Command(link, args...))
}

// startCommand starts a command, and kills it at the end of the test.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{T: t, cmd: cmd, ended: make(chan struct{}), changed: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "KUBECONFIG=")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as in a shell
	r, w := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var read sync.WaitGroup
	read.Go(func() { p.read(r) })
	go func() {
		_ = p.cmd.Wait() // ProcessState has the result
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
		p.lines = append(p.lines, strings.ReplaceAll(s.Text(), `\"`, `"`)) // klog escapes quotes in errors
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

// waitForOutput waits until the output has a given number of lines that contain all the words.
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
			p.Fatalf("the program exited without a line with %q", words)
		case <-ctx.Done():
			p.Fatalf("timed out waiting for a line with %q", words)
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

// terminate sends SIGTERM and returns the exit code.
func (p *process) terminate() int {
	p.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.Fatal(err)
	}
	return p.wait()
}

// interrupt sends SIGINT to the process group, as a terminal does, and returns the exit code of the program.
func (p *process) interrupt() int {
	p.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT); err != nil {
		p.Fatal(err)
	}
	return p.wait()
}

// kill kills the program, as in a crash.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// wait waits until the program exits and returns the exit code.
func (p *process) wait() int {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), testTimeout)
	defer cancel()
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.Fatal("timed out waiting for the program to exit")
	}
	return p.cmd.ProcessState.ExitCode()
}
