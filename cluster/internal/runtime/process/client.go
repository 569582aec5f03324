package process

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// request is a request of the node to a shim. Each connection carries one request.
type request struct {
	Do            string // wait, attach, stdin, signal, reopen or resize
	Signal        int
	Width, Height uint16
}

// Shim is a client of the shim of a container. Folder is the container's folder.
type Shim struct{ Folder string }

// dial connects to the socket in the shim's folder and sends a request. Only the container's shim listens there, so a
// reused PID cannot mislead the node.
func (s Shim) dial(r request) (net.Conn, error) {
	folder, err := os.Open(s.Folder)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	// The path goes through the descriptor of the folder, because the length of the path of a socket is limited.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), socketFile)
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// requestTimeout is the timeout of a request to a shim.
const requestTimeout = 10 * time.Second

func (s Shim) do(r request) error {
	conn, err := s.dial(r)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	var message string
	if err := json.NewDecoder(conn).Decode(&message); err != nil {
		return err
	}
	if message != "" {
		return errors.New(message)
	}
	return nil
}

// Watch returns a channel that receives the exit status of the container. The channel is closed without a value if the
// shim ends without a report.
func (s Shim) Watch() (<-chan Exit, error) {
	conn, err := s.dial(request{Do: "wait"})
	if err != nil {
		return nil, err
	}
	ended := make(chan Exit, 1)
	go func() {
		defer close(ended)
		defer conn.Close()
		var exit Exit
		if json.NewDecoder(conn).Decode(&exit) == nil {
			ended <- exit
		}
	}()
	return ended, nil
}

// Signal sends a signal to the container's first process. SIGKILL kills all processes of the container.
func (s Shim) Signal(which unix.Signal) error {
	return s.do(request{Do: "signal", Signal: int(which)})
}

// Reopen makes the shim open the log file again after it has been renamed.
func (s Shim) Reopen() error { return s.do(request{Do: "reopen"}) }

// Resize sets the size of the container's terminal.
func (s Shim) Resize(width, height uint16) error {
	return s.do(request{Do: "resize", Width: width, Height: height})
}

// Attach copies data from in to the container's standard input. It copies the container's output from now on to stdout
// and stderr. Each of the three parameters may be nil. Attach returns when the container or ctx has ended. Input and
// output use separate connections, so that one can end while the other continues.
func (s Shim) Attach(ctx context.Context, in io.Reader, stdout, stderr io.Writer) error {
	conn, err := s.dial(request{Do: "attach"})
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return nil // the container has ended
	}
	if in != nil {
		to, err := s.dial(request{Do: "stdin"})
		if err != nil {
			return err
		}
		defer to.Close()
		go func() {
			io.Copy(to, in)
			to.Close()
		}()
	}
	for {
		var header [5]byte
		if _, err := io.ReadFull(conn, header[:]); err != nil {
			return nil // the container has ended
		}
		to := stdout
		if header[0] == 'e' {
			to = stderr
		}
		if to == nil {
			to = io.Discard
		}
		if _, err := io.CopyN(to, conn, int64(binary.BigEndian.Uint32(header[1:]))); err != nil {
			return nil
		}
	}
}

// attachedClients is the set of connections that receive the output of a container.
type attachedClients struct {
	mu    sync.Mutex
	conns map[net.Conn]bool
}

func (c *attachedClients) add(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns == nil {
		c.conns = map[net.Conn]bool{}
	}
	c.conns[conn] = true
	// The client sends input only after this byte, so it receives all output for its input.
	conn.Write([]byte{readyByte})
}

func (c *attachedClients) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.Close()
	delete(c.conns, conn)
}

// attachWriteTimeout is the timeout of a write to an attached client. A client that reads too slowly is disconnected.
const attachWriteTimeout = 5 * time.Second

func (c *attachedClients) write(stream string, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.conns) == 0 || len(data) == 0 {
		return
	}
	frame := binary.BigEndian.AppendUint32([]byte{stream[len("std")]}, uint32(len(data)))
	frame = append(frame, data...)
	for conn := range c.conns {
		conn.SetWriteDeadline(time.Now().Add(attachWriteTimeout))
		if _, err := conn.Write(frame); err != nil {
			conn.Close()
			delete(c.conns, conn)
		}
	}
}
