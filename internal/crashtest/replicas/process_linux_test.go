package replicas_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a program on a host. It can be killed, paused and restarted.
type process struct {
	name string
	host *host
	args []string
	log  string // file

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended
}

func newProcess(t *testing.T, name string, on *host, args ...string) *process {
	t.Helper()
	p := &process{name: name, host: on, args: args, log: filepath.Join(t.TempDir(), name+".log")}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s: %s", name, p.tail())
		}
	})
	return p
}

// tail returns the end of the log.
func (p *process) tail() []byte {
	log, _ := os.ReadFile(p.log)
	return log[max(0, len(log)-3000):]
}

func (p *process) start() error {
	out, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	cmd, exited := exec.Command(p.args[0], p.args[1:]...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = out, out
	if err := p.host.start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.exited = cmd, exited
	return nil
}

func (p *process) current() (*exec.Cmd, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.exited
}

func (p *process) running() bool {
	cmd, exited := p.current()
	if cmd == nil {
		return false
	}
	select {
	case <-exited:
		return false
	default:
		return true
	}
}

func (p *process) signal(s syscall.Signal) error {
	cmd, _ := p.current()
	return cmd.Process.Signal(s)
}

// kill kills the process, also if it is paused, and waits for its end.
func (p *process) kill() {
	if cmd, exited := p.current(); cmd != nil {
		_ = cmd.Process.Kill()
		<-exited
	}
}

// terminate ends the process with SIGTERM.
func (p *process) terminate(timeout time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	_, exited := p.current()
	select {
	case <-exited:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("%s has not ended %v after SIGTERM", p.name, timeout)
	}
}
