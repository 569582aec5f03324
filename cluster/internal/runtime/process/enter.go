package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
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
	Resize   <-chan Size // of its terminal
}

// Size is that of a terminal.
type Size struct{ Width, Height uint16 }

// Run runs the command until it has ended and all that it wrote has been read. When ctx ends, or this process does,
// the command is killed. An error says that it did not run.
func (e Enter) Run(ctx context.Context, streams Streams) (code int, err error) {
	wiring, err := e.wire(streams)
	if err != nil {
		return 0, err
	}
	leash, holds, err1 := os.Pipe()
	status, mistakes, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		wiring.close()
		return 0, err
	}
	defer status.Close()
	cmd := again(enterName)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = wiring.in, wiring.out, wiring.err
	cmd.ExtraFiles = []*os.File{leash, mistakes}
	err = cmd.Start()
	leash.Close()
	mistakes.Close()
	if err != nil {
		holds.Close()
		wiring.close()
		return 0, fmt.Errorf("starting a command in a container: %w", err)
	}
	copied := wiring.copy(streams)
	over := context.AfterFunc(ctx, func() { holds.Close() })
	defer holds.Close()
	defer over()
	if err := json.NewEncoder(holds).Encode(e); err != nil && ctx.Err() == nil {
		return 0, err
	}
	if message, _ := io.ReadAll(status); len(message) > 0 {
		cmd.Wait()
		return 0, errors.New(string(message))
	}
	cmd.Wait()
	select {
	case <-copied:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return cmd.ProcessState.ExitCode(), ctx.Err()
}

// wiring is the command's side of its streams, and ours.
type wiring struct {
	in, out, err               *os.File
	toIn, fromOut, fromErr, tt *os.File
}

func (e Enter) wire(streams Streams) (*wiring, error) {
	w := &wiring{}
	if e.TTY {
		master, slave, err := OpenTerminal()
		if err != nil {
			return nil, err
		}
		w.in, w.out, w.err = slave, slave, slave
		w.toIn, w.fromOut, w.tt = master, master, master
		return w, nil
	}
	var err1, err2, err3 error
	if streams.In != nil {
		w.in, w.toIn, err1 = os.Pipe()
	} else {
		w.in, err1 = os.Open(os.DevNull)
	}
	w.fromOut, w.out, err2 = os.Pipe()
	w.fromErr, w.err, err3 = os.Pipe()
	return w, errors.Join(err1, err2, err3)
}

// close closes everything, when the command has not been started.
func (w *wiring) close() {
	for _, f := range []*os.File{w.in, w.out, w.err, w.toIn, w.fromOut, w.fromErr} {
		if f != nil {
			f.Close()
		}
	}
}

// copy moves data until all that the command wrote has been read, which closes the channel.
func (w *wiring) copy(streams Streams) <-chan struct{} {
	for _, f := range []*os.File{w.in, w.out, w.err} {
		f.Close()
	}
	if w.toIn != nil && streams.In != nil {
		go func() {
			io.Copy(w.toIn, streams.In)
			if w.tt == nil {
				w.toIn.Close()
			}
		}()
	}
	if w.tt != nil && streams.Resize != nil {
		go func() {
			for size := range streams.Resize {
				Resize(w.tt, size.Width, size.Height)
			}
		}()
	}
	var reads sync.WaitGroup
	for _, r := range []struct {
		from *os.File
		to   io.Writer
	}{{w.fromOut, streams.Out}, {w.fromErr, streams.Err}} {
		if r.from == nil {
			continue
		}
		if r.to == nil {
			r.to = io.Discard
		}
		reads.Go(func() {
			io.Copy(r.to, r.from)
			r.from.Close()
		})
	}
	done := make(chan struct{})
	go func() { reads.Wait(); close(done) }()
	return done
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
	// A thread that has its folder in common with others cannot change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, err
	}
	const all = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if err := e.Init.join(all); err != nil {
		return nil, err
	}
	if err := unix.Chdir(e.Spec.Dir); err != nil {
		return nil, fmt.Errorf("the working directory %s: %w", e.Spec.Dir, err)
	}
	if len(e.Command) == 0 {
		return nil, errors.New("no command")
	}
	program, err := e.Spec.find(e.Command[0])
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{Path: program, Args: e.Command, Env: e.Spec.Env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: e.TTY}
	return cmd, cmd.Start()
}
