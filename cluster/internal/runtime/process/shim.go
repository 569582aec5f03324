package process

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Launch starts a container and its shim, which continues when this process ends. The Spec of the container must be
// stored in folder. When Launch returns without an error, the command runs. If this process ends before it permits the
// shim to run the command, the command never runs, and the shim removes StartedFile before it ends.
func Launch(folder string) error {
	errs, err := os.OpenFile(filepath.Join(folder, shimLog), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer errs.Close()
	cmd := selfCommand(shimName)
	cmd.Dir, cmd.Stderr = folder, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = startChild(cmd, func(int) error { return nil })
	if cmd.Process != nil {
		go cmd.Wait()
	}
	return err
}

// supervisor is the state of a shim. It starts the container's init, logs its output and stores its exit status.
type supervisor struct {
	Spec
	log      logFile
	clients  attachedClients
	stdin    *os.File // of the container
	terminal *os.File

	mu   sync.Mutex // held while init is signalled or reaped
	init int        // PID, or 0 after it has been reaped

	exit  Exit
	ended chan struct{} // closed after exit has been set
}

// runShim runs the shim of the container in the working directory.
func runShim() error {
	node := inheritPipes()
	s := &supervisor{ended: make(chan struct{})}
	output, err := s.startContainer(node)
	if err != nil {
		s.terminate()
		if errors.Is(err, errParentEnded) {
			return errors.Join(err, os.Remove(StartedFile))
		}
		// The node and the readers of ExitFile must see the same message. A reader may see it earlier than the node.
		exit := Exit{Code: startErrorCode, Reason: "StartError", Message: err.Error(), At: time.Now()}
		return errors.Join(node.reportResult(err), WriteFile(ExitFile, exit))
	}
	node.reportResult(nil)
	exit := s.wait()
	drained := make(chan struct{})
	go func() { output.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(time.Second): // a process outside the container keeps the output open
	}
	return s.report(exit)
}

// report stores the exit status of the container and sends it to all waiting clients. No other process knows the exit
// status. So if the file cannot be written, for example on a full disk, report retries until the file exists or the
// node has removed the container.
func (s *supervisor) report(exit Exit) error {
	err := WriteFile(ExitFile, exit)
	s.exit = exit
	close(s.ended)
	for err != nil && !errors.Is(err, os.ErrNotExist) {
		<-time.After(time.Second)
		if _, missing := os.Stat(ExitFile); missing == nil {
			return nil
		}
		err = WriteFile(ExitFile, exit)
	}
	return err
}

// startContainer starts the container's command. The WaitGroup that it returns is done after all output of the
// container has been read.
func (s *supervisor) startContainer(node childPipes) (*sync.WaitGroup, error) {
	if err := ReadFile(SpecFile, &s.Spec); err != nil {
		return nil, err
	}
	listener, err := listen()
	if err != nil {
		return nil, err
	}
	s.log.path = s.Log
	if err := s.log.open(); err != nil {
		return nil, err
	}
	if err := s.joinNamespaces(); err != nil {
		return nil, err
	}
	go s.serve(listener)
	cmd := selfCommand(initName)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(s.New), Setsid: true, Setctty: s.TTY}
	return s.connectStreams(func(in, out, err *os.File) error {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, err
		return startChild(cmd, func(pid int) error {
			s.mu.Lock()
			s.init = pid
			s.mu.Unlock()
			id, err := Identify(pid)
			if err == nil {
				err = WriteFile(StartedFile, Started{Init: id, At: time.Now()})
			}
			if err != nil {
				return err
			}
			return node.waitForParent()
		})
	})
}

func listen() (net.Listener, error) {
	if err := os.Remove(socketFile); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", socketFile) // relative, because the length of a socket's path is limited
}

// joinNamespaces moves this thread into the namespaces of the Pod. The container's init, which this thread starts,
// inherits them.
func (s *supervisor) joinNamespaces() error {
	if s.PIDOf != nil {
		if err := s.PIDOf.join(unix.CLONE_NEWPID); err != nil {
			return err
		}
	}
	return s.Sandbox.join(s.Join)
}

// connectStreams opens the standard streams of the container, calls start with them, and copies the output.
func (s *supervisor) connectStreams(start func(in, out, err *os.File) error) (*sync.WaitGroup, error) {
	var copies sync.WaitGroup
	copyStream := func(name string, from *os.File) {
		copies.Go(func() { s.copyOutput(&logStream{log: &s.log, name: name}, from) })
	}
	if s.TTY {
		master, slave, err := OpenTerminal()
		if err != nil {
			return nil, err
		}
		defer slave.Close()
		s.terminal = master
		if s.Stdin {
			s.stdin = master
		}
		if err := start(slave, slave, slave); err != nil {
			return nil, err
		}
		copyStream("stdout", master)
		return &copies, nil
	}
	outRead, outWrite, err1 := os.Pipe()
	errRead, errWrite, err2 := os.Pipe()
	in, err3 := os.Open(os.DevNull)
	if s.Stdin && err3 == nil {
		in.Close()
		in, s.stdin, err3 = os.Pipe()
	}
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	err := start(in, outWrite, errWrite)
	for _, f := range []*os.File{in, outWrite, errWrite} {
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	copyStream("stdout", outRead)
	copyStream("stderr", errRead)
	return &copies, nil
}

// copyOutput copies output to the log and to the attached clients.
func (s *supervisor) copyOutput(to *logStream, from *os.File) {
	buffer := make([]byte, maxLogLine)
	for {
		n, err := from.Read(buffer)
		to.write(buffer[:n])
		s.clients.write(to.name, buffer[:n])
		if err != nil {
			to.flush()
			return
		}
	}
}

// wait waits until init ends, kills the remaining processes of the container, and returns the exit status. Until these
// processes are killed, init stays a zombie, so the kernel cannot reuse its PID.
func (s *supervisor) wait() Exit {
	for {
		if err := unix.Waitid(unix.P_PID, s.init, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			break
		}
	}
	return exitFor(s.terminate())
}

// exitFor returns the Exit for the wait status of init.
func exitFor(status unix.WaitStatus) Exit {
	exit := Exit{Code: int32(status.ExitStatus()), Reason: "Completed", At: time.Now()}
	if status.Signaled() {
		exit.Code = startErrorCode + int32(status.Signal())
	}
	if exit.Code != 0 {
		exit.Reason = "Error"
	}
	return exit
}

// kill kills the processes of the container. If init has a separate PID namespace, the namespace ends with it.
// Otherwise kill reaches the process group of init and the processes in the container's cgroups. s.mu must be held.
func (s *supervisor) kill() {
	if s.init == 0 {
		return
	}
	unix.Kill(s.init, unix.SIGKILL)
	if s.New&unix.CLONE_NEWPID == 0 {
		unix.Kill(-s.init, unix.SIGKILL)
		for _, folder := range s.Cgroups {
			killCgroup(folder)
		}
	}
}

// terminate kills the container, reaps init and returns its wait status.
func (s *supervisor) terminate() (status unix.WaitStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
	for s.init != 0 {
		if _, err := unix.Wait4(s.init, &status, 0, nil); err != unix.EINTR {
			s.init = 0
		}
	}
	return status
}

// signal sends a signal to the container's init, or kills all processes of the container if the signal is SIGKILL.
func (s *supervisor) signal(which unix.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.init == 0 {
		return nil
	}
	if which == unix.SIGKILL {
		s.kill()
		return nil
	}
	return unix.Kill(s.init, which)
}

// serve accepts connections of the node until the listener is closed.
func (s *supervisor) serve(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for example too many open files
			<-time.After(100 * time.Millisecond)
			continue
		}
		go s.handle(conn.(*net.UnixConn))
	}
}

// handle reads the request of a connection and serves it.
func (s *supervisor) handle(conn *net.UnixConn) {
	var r request
	reader := bufio.NewReader(conn)
	line, err := reader.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		conn.Close()
		return
	}
	switch r.Do {
	case "wait":
		if s.waitForExit(conn) {
			json.NewEncoder(conn).Encode(s.exit)
		}
		conn.Close()
		return
	case "attach":
		s.clients.add(conn)
		s.waitForExit(conn)
		s.clients.remove(conn)
		return
	case "stdin":
		s.copyStdin(reader)
		conn.Close()
		return
	case "signal":
		err = s.signal(unix.Signal(r.Signal))
	case "reopen":
		err = s.log.open()
	case "resize":
		if s.terminal != nil {
			err = Resize(s.terminal, r.Width, r.Height)
		}
	}
	message := ""
	if err != nil {
		message = err.Error()
	}
	json.NewEncoder(conn).Encode(message)
	conn.Close()
}

// waitForExit blocks until the container has ended or the client has disconnected. It returns true if the container
// has ended. It discards further data of the client.
func (s *supervisor) waitForExit(conn net.Conn) (ended bool) {
	disconnected := make(chan struct{})
	go func() { io.Copy(io.Discard, conn); close(disconnected) }()
	select {
	case <-s.ended:
		return true
	case <-disconnected:
		return false
	}
}

// copyStdin copies the input of a client to the container.
func (s *supervisor) copyStdin(from io.Reader) {
	if s.stdin == nil {
		return
	}
	io.Copy(s.stdin, from)
	if s.StdinOnce && !s.TTY {
		s.stdin.Close()
	}
}
