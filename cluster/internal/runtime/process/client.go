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

// request is what the node asks of a shim, one a connection.
type request struct {
	Do            string
	Signal        int
	Width, Height uint16
}

// Shim is the shim of a container, as the node speaks to it.
type Shim struct{ Folder string }

// dial connects to the socket that the shim has made in its folder: who answers is that shim, whatever has become of
// its process number.
func (s Shim) dial(r request) (net.Conn, error) {
	folder, err := os.Open(s.Folder)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	// By the descriptor, for a path to a socket may not be long.
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

// answerTime is how long a shim may take to do what is asked of it.
const answerTime = 10 * time.Second

func (s Shim) do(r request) error {
	conn, err := s.dial(r)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
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

// Watch returns a channel that says how the container has ended, or is closed when its shim has gone without a word.
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

// Signal reaches the container's first process; SIGKILL all of the container.
func (s Shim) Signal(which unix.Signal) error {
	return s.do(request{Do: "signal", Signal: int(which)})
}

// Reopen opens the log anew, after it has been renamed.
func (s Shim) Reopen() error { return s.do(request{Do: "reopen"}) }

// Resize says how large the container's terminal is.
func (s Shim) Resize(width, height uint16) error {
	return s.do(request{Do: "resize", Width: width, Height: height})
}

// Attach copies what comes on in to the container, and what it writes from now on to stdout and stderr, any of which
// may be nil, until the container has ended or ctx has. What is written goes another way than what is read: so each end
// is noticed.
func (s Shim) Attach(ctx context.Context, in io.Reader, stdout, stderr io.Writer) error {
	conn, err := s.dial(request{Do: "attach"})
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return nil // the end
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
			return nil // the end
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

// clients are those who are attached to a container.
type clients struct {
	mu   sync.Mutex
	list map[net.Conn]bool
}

func (c *clients) add(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.list == nil {
		c.list = map[net.Conn]bool{}
	}
	c.list[conn] = true
	conn.Write([]byte{ready}) // from now on: nothing that answers what it says is missed
}

func (c *clients) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.Close()
	delete(c.list, conn)
}

// patience is how long output waits for somebody who is attached and does not read. Then they are not any more.
const patience = 5 * time.Second

func (c *clients) write(stream string, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) == 0 || len(data) == 0 {
		return
	}
	frame := binary.BigEndian.AppendUint32([]byte{stream[len("std")]}, uint32(len(data)))
	frame = append(frame, data...)
	for conn := range c.list {
		conn.SetWriteDeadline(time.Now().Add(patience))
		if _, err := conn.Write(frame); err != nil {
			conn.Close()
			delete(c.list, conn)
		}
	}
}
