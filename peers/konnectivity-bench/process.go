package main

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
	logTail           = 2 << 10 // bytes of a log that an error message includes
	wantFiles         = 1 << 16 // limit of open files
	spareFiles        = 200     // open files of a process other than its streams
)

// process is a child process. It is killed when the context of start is done.
type process struct {
	*exec.Cmd
	log   string
	ended chan struct{}
}

// start runs a command line. Its output goes to a file in dir.
func start(ctx context.Context, dir string, commandLine []string, files ...*os.File) (*process, error) {
	log, err := os.CreateTemp(dir, "log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{exec.CommandContext(ctx, commandLine[0], commandLine[1:]...), log.Name(), make(chan struct{})}
	p.Stdout, p.Stderr, p.ExtraFiles = log, log, files
	if _, err := p.StdinPipe(); err != nil { // runTarget ends when its stdin is closed, even if this process is killed
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.Wait() // the log contains the reason
		close(p.ended)
	}()
	return p, nil
}

// wait waits until the process has ended. The context of start must be done.
func (p *process) wait() {
	if p != nil {
		<-p.ended
	}
}

// ready waits until the process reports at the health port that it is ready.
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
		return fmt.Errorf("%s ended, or did not become ready within %s:\n%s",
			p, readyTimeout, log[max(0, len(log)-logTail):])
	}
}

// usage is the resource usage of a process.
type usage struct {
	name        string
	cpu, memory float64 // seconds of CPU time; proportional set size in bytes
}

// processUsage returns the usage of the server and the agent.
func (t *tunnel) processUsage() (all []usage) {
	for i, p := range t.processes {
		u := usage{name: []string{"server", "agent"}[i]}
		if proc, err := procfs.NewProc(p.Process.Pid); err == nil { // a process that has ended uses nothing
			stat, _ := proc.Stat()
			rollup, _ := proc.ProcSMapsRollup()
			u.cpu, u.memory = stat.CPUTime(), float64(rollup.Pss)
		}
		all = append(all, u)
	}
	return all
}

// freePort returns a free port below the ephemeral range. The reference programs reject ports above 49151.
func freePort() string {
	for {
		port := strconv.Itoa(10000 + rand.IntN(20000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = l.Close()
			return port
		}
	}
}

// raiseFiles raises the limit of open files of this process and its children as far as possible. It returns the
// limit.
func raiseFiles() int {
	limit := syscall.Rlimit{Cur: wantFiles, Max: wantFiles}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
		limit.Cur = limit.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) // children inherit only a limit that was set explicitly
	}
	return int(limit.Cur)
}
