package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Enter is a command to be run in a container that runs.
type Enter struct {
	Spec    Spec // of the container
	Init    ID   // its first process
	Command []string
	TTY     bool
}

// Streams are what a command reads and writes; each may be nil.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Terminal func(*os.File) // is given the command's terminal, whose size may change
}

// Run runs the command until it has ended and all that it wrote has been read. When ctx ends, or this process does,
// the command is killed. An error says that it did not run.
func (e Enter) Run(ctx context.Context, streams Streams) (code int, err error) {
	leash, holds, err1 := os.Pipe()
	status, mistakes, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		return 0, err
	}
	defer status.Close()
	defer holds.Close()
	cmd := again(enterName)
	cmd.ExtraFiles = []*os.File{leash, mistakes}
	started, err := e.connect(cmd, streams)
	if err == nil {
		err = cmd.Start()
	}
	leash.Close()
	mistakes.Close()
	ended := started(err)
	if err != nil {
		return 0, fmt.Errorf("starting a command in a container: %w", err)
	}
	defer context.AfterFunc(ctx, func() { holds.Close() })()
	if err := json.NewEncoder(holds).Encode(e); err != nil && ctx.Err() == nil {
		return 0, err
	}
	message, _ := io.ReadAll(status)
	all := make(chan struct{})
	go func() {
		cmd.Wait() // for output, too
		<-ended
		close(all)
	}()
	select {
	case <-all:
	case <-ctx.Done(): // somebody else may hold on to its output
		return 0, ctx.Err()
	}
	if len(message) > 0 {
		return 0, errors.New(string(message))
	}
	return cmd.ProcessState.ExitCode(), ctx.Err()
}

// connect gives a command its streams. What it returns is called when the command has been started, or has not; the
// channel is closed when all that it wrote on a terminal has been read.
func (e Enter) connect(cmd *exec.Cmd, streams Streams) (started func(error) <-chan struct{}, err error) {
	ended := make(chan struct{})
	if e.TTY {
		master, slave, err := OpenTerminal()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		return func(failed error) <-chan struct{} {
			slave.Close()
			go e.talk(master, streams, ended)
			return ended
		}, err
	}
	close(ended)
	cmd.Stdout, cmd.Stderr = streams.Out, streams.Err
	if streams.In == nil {
		return func(error) <-chan struct{} { return ended }, nil
	}
	read, write, err := os.Pipe()
	cmd.Stdin = read
	return func(failed error) <-chan struct{} {
		read.Close()
		go func() {
			if failed == nil {
				io.Copy(write, streams.In)
			}
			write.Close()
		}()
		return ended
	}, err
}

// talk copies between a terminal and who sits at it, until nobody has it open any more.
func (e Enter) talk(master *os.File, streams Streams, ended chan<- struct{}) {
	defer close(ended)
	defer master.Close()
	if streams.In != nil {
		go io.Copy(master, streams.In)
	}
	if streams.Terminal != nil {
		go streams.Terminal(master)
	}
	if streams.Out == nil {
		streams.Out = io.Discard
	}
	io.Copy(streams.Out, master)
}

// spaces are the namespaces that a container does not have in common with the node.
func (s *Spec) spaces() int {
	spaces := s.Join | s.New
	if s.PIDOf != nil {
		spaces |= unix.CLONE_NEWPID
	}
	return spaces
}

// enter goes into a container, runs a command there, and ends as it does.
func enter() error {
	leash, status := os.NewFile(3, "leash"), os.NewFile(4, "status")
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	cmd, err := launchIn(leash)
	if err != nil {
		fmt.Fprint(status, err)
		return err
	}
	status.Close()
	go func() {
		io.Copy(io.Discard, leash) // ends when nobody wants the command any more
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	}()
	cmd.Wait()
	code := cmd.ProcessState.ExitCode()
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		code = startFailed + int(s.Signal())
	}
	os.Exit(code)
	return nil
}

func launchIn(leash io.Reader) (*exec.Cmd, error) {
	var e Enter
	if err := json.NewDecoder(leash).Decode(&e); err != nil {
		return nil, err
	}
	if err := enroll(e.Spec.Cgroups); err != nil {
		return nil, err
	}
	if len(e.Command) == 0 {
		return nil, errors.New("no command")
	}
	own, err := e.Spec.own(e.Command[0])
	if err != nil {
		return nil, err
	}
	// A thread that has its folder in common with others cannot change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, err
	}
	if err := e.Init.join(e.Spec.spaces()); err != nil {
		return nil, err
	}
	if err := e.Spec.settleUser(); err != nil {
		return nil, err
	}
	return e.start(own)
}

// start starts the command, where this process is.
func (e *Enter) start(own *program) (cmd *exec.Cmd, err error) {
	env := e.Spec.Env
	if e.TTY && !slices.ContainsFunc(env, func(pair string) bool { return strings.HasPrefix(pair, "TERM=") }) {
		env = append(env, "TERM=xterm")
	}
	err = e.Spec.launch(e.Command[0], own, func(path string) error {
		cmd = &exec.Cmd{Path: path, Args: e.Command, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: e.TTY}
		return cmd.Start()
	})
	return cmd, err
}
