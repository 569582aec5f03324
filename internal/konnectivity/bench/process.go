package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

const (
	readyTimeout      = 30 * time.Second
	readyPollInterval = 20 * time.Millisecond
	logTail           = 2 << 10 // bytes of a log that an error shows
	wantFiles         = 1 << 16 // open files
	spareFiles        = 200     // which a process has beside its streams
)

// process is a child. It is killed when the context is done that it was started with.
type process struct {
	*exec.Cmd
	log   string
	ended chan struct{}
}

// start runs a command line whose output goes to a file in dir.
func start(ctx context.Context, dir string, command []string, files ...*os.File) (*process, error) {
	log, err := os.CreateTemp(dir, "log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{exec.CommandContext(ctx, command[0], command[1:]...), log.Name(), make(chan struct{})}
	p.Stdout, p.Stderr, p.ExtraFiles = log, log, files
	if _, err := p.StdinPipe(); err != nil { // Far ends when it is closed, so also when this process is killed
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.Wait() // how it ended stands in its log
		close(p.ended)
	}()
	return p, nil
}

// wait waits for the end, which the context has asked for.
func (p *process) wait() {
	if p != nil {
		<-p.ended
	}
}

// ready waits until the process says at a port that it is.
func (p *process) ready(ctx context.Context, port string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		if res, err := http.Get("http://127.0.0.1:" + port + "/readyz"); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(readyPollInterval):
			continue
		case <-p.ended:
		case <-ctx.Done():
		}
		log, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s was not ready before its end or within %s:\n%s", p, readyTimeout, log[max(0, len(log)-logTail):])
	}
}

// usage is what a process has used.
type usage struct {
	name        string
	cpu, memory float64 // seconds of processor time; its share of memory, in bytes
}

// processUsage is what server and agent have.
func (t *tunnel) processUsage() (all []usage) {
	for i, p := range t.processes {
		u := usage{name: []string{"server", "agent"}[i]}
		if proc, err := procfs.NewProc(p.Process.Pid); err == nil { // one that has ended has nothing, and nothing goes through it
			stat, _ := proc.Stat()
			rollup, _ := proc.ProcSMapsRollup()
			u.cpu, u.memory = stat.CPUTime(), float64(rollup.Pss)
		}
		all = append(all, u)
	}
	return all
}

// freePort finds a port below those that the system gives to outgoing connections; the reference refuses those over 49151.
func freePort() string {
	for {
		port := strconv.Itoa(10000 + rand.IntN(20000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = l.Close()
			return port
		}
	}
}

// raiseFiles has this process, and its children, open as many files as they may, and says how many those are.
func raiseFiles() int {
	limit := syscall.Rlimit{Cur: wantFiles, Max: wantFiles}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
		limit.Cur = limit.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) // children inherit only what was set
	}
	return int(limit.Cur)
}
