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

// Enter describes a command to run in a running container.
type Enter struct {
	Spec    Spec // of the container
	Init    ID   // first process of the container
	Command []string
	TTY     bool
}

// Streams holds the standard streams of a command. Each may be nil.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Terminal func(*os.File) // called with the command's terminal, to set its size
}

// Run runs the command and returns its exit code after all its output has been read. The command is killed when ctx or
// this process ends. Run returns an error if the command could not be started or ctx has ended.
func (e Enter) Run(ctx context.Context, streams Streams) (code int, err error) {
	controlRead, controlWrite, err1 := os.Pipe()
	statusRead, statusWrite, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		return 0, err
	}
	defer statusRead.Close()
	defer controlWrite.Close()
	cmd := selfCommand(enterName)
	cmd.ExtraFiles = []*os.File{controlRead, statusWrite}
	started, err := e.connectStreams(cmd, streams)
	if err == nil {
		err = cmd.Start()
	}
	controlRead.Close()
	statusWrite.Close()
	ended := started(err)
	if err != nil {
		return 0, fmt.Errorf("starting a command in a container: %w", err)
	}
	defer context.AfterFunc(ctx, func() { controlWrite.Close() })()
	if err := json.NewEncoder(controlWrite).Encode(e); err != nil && ctx.Err() == nil {
		return 0, err
	}
	message, _ := io.ReadAll(statusRead)
	finished := make(chan struct{})
	go func() {
		cmd.Wait() // also waits for the output
		<-ended
		close(finished)
	}()
	select {
	case <-finished:
	case <-ctx.Done(): // another process may keep the output open
		return 0, ctx.Err()
	}
	if len(message) > 0 {
		return 0, errors.New(string(message))
	}
	return cmd.ProcessState.ExitCode(), ctx.Err()
}

// connectStreams sets the standard streams of cmd. After the start of cmd, the caller must call the returned function
// started with the error of the start. This function returns a channel, which is closed after all output of a terminal
// has been read.
func (e Enter) connectStreams(cmd *exec.Cmd, streams Streams) (started func(error) <-chan struct{}, err error) {
	ended := make(chan struct{})
	if e.TTY {
		master, slave, err := OpenTerminal()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		return func(failed error) <-chan struct{} {
			slave.Close()
			go e.copyTerminal(master, streams, ended)
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

// copyTerminal copies between a terminal and the caller's streams until no process has the terminal open.
func (e Enter) copyTerminal(master *os.File, streams Streams, ended chan<- struct{}) {
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

// separateNamespaces returns the flags (CLONE_NEW…) of the namespaces that a container does not share with the node.
func (s *Spec) separateNamespaces() int {
	flags := s.Join | s.New
	if s.PIDOf != nil {
		flags |= unix.CLONE_NEWPID
	}
	return flags
}

// runEnter joins a container, runs a command there, and exits with the exit code of the command.
func runEnter() error {
	control, status := os.NewFile(3, "control"), os.NewFile(4, "status")
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	cmd, err := startInContainer(control)
	if err != nil {
		fmt.Fprint(status, err)
		return err
	}
	status.Close()
	go func() {
		io.Copy(io.Discard, control) // returns when the node has cancelled the command or has ended
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	}()
	cmd.Wait()
	code := cmd.ProcessState.ExitCode()
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		code = startErrorCode + int(s.Signal())
	}
	os.Exit(code)
	return nil
}

// startInContainer reads an Enter, moves this process into its container and starts the command.
func startInContainer(control io.Reader) (*exec.Cmd, error) {
	var e Enter
	if err := json.NewDecoder(control).Decode(&e); err != nil {
		return nil, err
	}
	if err := joinCgroups(e.Spec.Cgroups); err != nil {
		return nil, err
	}
	if len(e.Command) == 0 {
		return nil, errors.New("no command")
	}
	image, err := e.Spec.openImageFile(e.Command[0])
	if err != nil {
		return nil, err
	}
	// A thread that shares its working directory with other threads cannot change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, err
	}
	if err := e.Init.join(e.Spec.separateNamespaces()); err != nil {
		return nil, err
	}
	if err := e.Spec.switchUser(); err != nil {
		return nil, err
	}
	return e.start(image)
}

// start starts the command in the namespaces of this process.
func (e *Enter) start(image *imageFile) (cmd *exec.Cmd, err error) {
	env := e.Spec.Env
	if e.TTY && !slices.ContainsFunc(env, func(pair string) bool { return strings.HasPrefix(pair, "TERM=") }) {
		env = append(env, "TERM=xterm")
	}
	err = e.Spec.launch(e.Command[0], image, func(path string) error {
		cmd = &exec.Cmd{Path: path, Args: e.Command, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: e.TTY}
		return cmd.Start()
	})
	return cmd, err
}
