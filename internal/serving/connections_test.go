package serving

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

var aLongTimeAgo = time.Unix(1, 0)

// pipes is a listener whose connections are pipes, or errors.
type pipes struct {
	net.Listener
	next  error
	there []net.Conn // the clients' ends
}

func (p *pipes) Accept() (net.Conn, error) {
	if err := p.next; err != nil {
		p.next = nil
		return nil, err
	}
	here, there := net.Pipe()
	p.there = append(p.there, there)
	return here, nil
}

// ended reports whether the server has closed connection i.
func (p *pipes) ended(i int) bool {
	if err := p.there[i].SetReadDeadline(aLongTimeAgo); err != nil {
		return true
	}
	_, err := p.there[i].Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

func accept(t *testing.T, c *connections) *connection {
	t.Helper()
	conn, err := c.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*connection)
}

// TestConnectionsAtTheLimit checks that the oldest connection that never authenticated is closed for a new one, that authenticated
// connections never are, and that they leave space for others.
func TestConnectionsAtTheLimit(t *testing.T) {
	const most, trusted = 20, 20 - unauthenticatedConnections
	clients := &pipes{}
	var log strings.Builder
	c := newConnections(clients, most, slog.New(slog.NewTextHandler(&log, nil)))
	for range most {
		accept(t, c)
	}
	for i := range most {
		if clients.ended(i) {
			t.Fatalf("connection %d was closed below the limit", i)
		}
	}
	newest := accept(t, c)
	for i := range most + 1 {
		if clients.ended(i) != (i == 0) {
			t.Errorf("connection %d: closed: %t", i, i != 0)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines: %s", n, log.String())
	}
	if newest.Close(); c.count().Open != most-1 || newest.Close() != nil || c.count().Open != most-1 {
		t.Errorf("%+v", c.count())
	}
	var admitted []*connection
	for range trusted {
		conn := accept(t, c)
		for range 2 { // the second request on it is admitted as well
			if !conn.admit() {
				t.Fatalf("refused: %+v", c.count())
			}
		}
		admitted = append(admitted, conn)
	}
	late := accept(t, c)
	if late.admit() {
		t.Error("authenticated connections used up the limit")
	}
	first := len(clients.there) - trusted - 1
	for range 10 * most {
		accept(t, c)
	}
	for i := range trusted {
		if clients.ended(first + i) {
			t.Errorf("authenticated connection %d was closed", i)
		}
	}
	if got := c.count(); got.Open != most || got.Authenticated != trusted || got.Refused != 1 {
		t.Errorf("%+v", got)
	}
	if !clients.ended(first + trusted) {
		t.Error("a refused connection counts as an authenticated one")
	}
	admitted[0].Close()
	if another := accept(t, c); !another.admit() {
		t.Errorf("refused: %+v", c.count())
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines within a second: %s", n, log.String())
	}
}

// TestDescriptorsRunOut checks that a connection that never authenticated is closed when the system has no descriptor for a new one.
func TestDescriptorsRunOut(t *testing.T) {
	clients := &pipes{}
	c := newConnections(clients, 100, slog.New(slog.DiscardHandler))
	accept(t, c).admit()
	accept(t, c)
	for _, code := range []error{syscall.EMFILE, syscall.ENFILE} {
		clients.next = &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", code)}
		if _, err := c.Accept(); !errors.Is(err, code) {
			t.Error(err)
		}
	}
	if clients.ended(0) || !clients.ended(1) || c.count().Open != 1 {
		t.Errorf("%+v", c.count())
	}
}

// TestAdmission checks that the connection of a request is found below TLS.
func TestAdmission(t *testing.T) {
	clients := &pipes{}
	c := newConnections(clients, 100, slog.New(slog.DiscardHandler))
	conn, err := (tlsbatch.Listener{Listener: c}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	admit := admission(tls.Server(conn, nil))
	if admit == nil || !admit() || c.count().Authenticated != 1 {
		t.Errorf("%+v", c.count())
	}
}

// TestReserve checks how many of the descriptors are for connections.
func TestReserve(t *testing.T) {
	for files, want := range map[uint64]int{0: 16, 20: 16, 64: 32, 256: 128, 1024: 704, 4096: 3072, 1 << 20: 3 << 18, 1<<63 - 1: 1<<31 - 1} {
		if got := maxConnections(files); got != want {
			t.Errorf("of %d files %d are for connections, want %d", files, got, want)
		}
	}
}
