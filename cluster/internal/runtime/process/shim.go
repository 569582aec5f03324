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

// Launch starts the container whose Spec lies in the folder, with a shim that outlives this process. When it returns
// without an error, the command runs. If this process ends before StartedFile is there, the command never runs.
func Launch(folder string) error {
	errs, err := os.OpenFile(filepath.Join(folder, shimLog), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer errs.Close()
	cmd := again(shimName)
	cmd.Dir, cmd.Stderr = folder, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = start(cmd, func(int) error { return nil })
	if cmd.Process != nil {
		go cmd.Wait()
	}
	return err
}

// supervisor is a shim: it starts the container's init, keeps what it writes, and writes down how it ends.
type supervisor struct {
	Spec
	log     logFile
	clients clients
	stdin   *os.File // of the container
	term    *os.File

	mu   sync.Mutex // held while init is signalled, and while it is reaped
	init int        // 0 when it has been reaped

	exit  Exit
	ended chan struct{} // closed when exit is there
}

func shim() error {
	node := born()
	s := &supervisor{ended: make(chan struct{})}
	output, err := s.begin(node)
	if err != nil {
		s.end()
		// Whoever reads Exit may do so before the one who asked for the start hears of it: both say the same.
		exit := Exit{Code: startFailed, Reason: "StartError", Message: err.Error(), At: time.Now()}
		return errors.Join(node.tell(err), WriteFile(ExitFile, exit))
	}
	node.tell(nil)
	exit := s.wait()
	drained := make(chan struct{})
	go func() { output.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(time.Second): // somebody outside has its output open
	}
	return s.report(exit)
}

// report writes down how the container has ended, and tells it to all who wait. Where there is no room for the file it
// stays and tries again, until the node has written it, or has removed the container: nobody else knows.
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

// begin has the container's command run. What it returns is done when all that the container writes has been read.
func (s *supervisor) begin(node birth) (*sync.WaitGroup, error) {
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
	if err := s.enter(); err != nil {
		return nil, err
	}
	go s.serve(listener)
	cmd := again(initName)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(s.New), Setsid: true, Setctty: s.TTY}
	return s.connect(func(in, out, err *os.File) error {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, err
		return start(cmd, func(pid int) error {
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
			return node.ready()
		})
	})
}

func listen() (net.Listener, error) {
	if err := os.Remove(socketFile); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", socketFile) // relative: a path to a socket may not be long
}

// enter takes this thread, which init will be a child of, into the namespaces of the pod.
func (s *supervisor) enter() error {
	if s.PIDOf != nil {
		if err := s.PIDOf.join(unix.CLONE_NEWPID); err != nil {
			return err
		}
	}
	return s.Sandbox.join(s.Join)
}

// connect opens what the container reads and writes, and starts it with that.
func (s *supervisor) connect(start func(in, out, err *os.File) error) (*sync.WaitGroup, error) {
	var copies sync.WaitGroup
	follow := func(name string, from *os.File) {
		copies.Go(func() { s.follow(&stream{log: &s.log, name: name}, from) })
	}
	if s.TTY {
		master, slave, err := OpenTerminal()
		if err != nil {
			return nil, err
		}
		defer slave.Close()
		s.term = master
		if s.Stdin {
			s.stdin = master
		}
		if err := start(slave, slave, slave); err != nil {
			return nil, err
		}
		follow("stdout", master)
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
	follow("stdout", outRead)
	follow("stderr", errRead)
	return &copies, nil
}

// follow copies output to the log and to those who are attached.
func (s *supervisor) follow(to *stream, from *os.File) {
	buffer := make([]byte, longest)
	for {
		n, err := from.Read(buffer)
		to.write(buffer[:n])
		s.clients.write(to.name, buffer[:n])
		if err != nil {
			to.end()
			return
		}
	}
}

// wait waits for init to end, and ends what is left of the container while init's number is still its own.
func (s *supervisor) wait() Exit {
	for {
		if err := unix.Waitid(unix.P_PID, s.init, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			break
		}
	}
	return ending(s.end())
}

func ending(status unix.WaitStatus) Exit {
	exit := Exit{Code: int32(status.ExitStatus()), Reason: "Completed", At: time.Now()}
	if status.Signaled() {
		exit.Code = startFailed + int32(status.Signal())
	}
	if exit.Code != 0 {
		exit.Reason = "Error"
	}
	return exit
}

// kill ends all processes of the container that can be told from others: with init ends its PID namespace; where it
// has none, those of its process group, and what its cgroups hold.
func (s *supervisor) kill() {
	if s.init == 0 {
		return
	}
	unix.Kill(s.init, unix.SIGKILL)
	if s.New&unix.CLONE_NEWPID == 0 {
		unix.Kill(-s.init, unix.SIGKILL)
		for _, folder := range s.Cgroups {
			killAll(folder)
		}
	}
}

func (s *supervisor) end() (status unix.WaitStatus) {
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

// signal reaches the container's init, or with SIGKILL all of it.
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

// serve answers the node.
func (s *supervisor) serve(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // as when there are too many open files
			<-time.After(100 * time.Millisecond)
			continue
		}
		go s.answer(conn.(*net.UnixConn))
	}
}

func (s *supervisor) answer(conn *net.UnixConn) {
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
		if s.untilEnd(conn) {
			json.NewEncoder(conn).Encode(s.exit)
		}
		conn.Close()
		return
	case "attach":
		s.clients.add(conn)
		s.untilEnd(conn)
		s.clients.remove(conn)
		return
	case "stdin":
		s.feed(reader)
		conn.Close()
		return
	case "signal":
		err = s.signal(unix.Signal(r.Signal))
	case "reopen":
		err = s.log.open()
	case "resize":
		if s.term != nil {
			err = Resize(s.term, r.Width, r.Height)
		}
	}
	message := ""
	if err != nil {
		message = err.Error()
	}
	json.NewEncoder(conn).Encode(message)
	conn.Close()
}

// untilEnd waits for the end of the container, or until a client, which has nothing more to say, has gone.
func (s *supervisor) untilEnd(conn net.Conn) (ended bool) {
	gone := make(chan struct{})
	go func() { io.Copy(io.Discard, conn); close(gone) }()
	select {
	case <-s.ended:
		return true
	case <-gone:
		return false
	}
}

// feed gives the container what a client has for it.
func (s *supervisor) feed(from io.Reader) {
	if s.stdin == nil {
		return
	}
	io.Copy(s.stdin, from)
	if s.StdinOnce && !s.TTY {
		s.stdin.Close()
	}
}
