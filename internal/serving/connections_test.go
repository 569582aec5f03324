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

// pipes is a listener whose Accept returns an in-memory connection, or the error in next.
type pipes struct {
	net.Listener
	next    error
	clients []net.Conn // the clients' ends
}

func (p *pipes) Accept() (net.Conn, error) {
	if err := p.next; err != nil {
		p.next = nil
		return nil, err
	}
	server, client := net.Pipe()
	p.clients = append(p.clients, client)
	return server, nil
}

// ended reports whether the server has closed connection i.
func (p *pipes) ended(i int) bool {
	if err := p.clients[i].SetReadDeadline(aLongTimeAgo); err != nil {
		return true
	}
	_, err := p.clients[i].Read(make([]byte, 1))
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

// TestConnectionsAtTheLimit checks that the oldest unauthenticated connection is closed for a new one. Authenticated
// connections are never closed, and never use all connections.
func TestConnectionsAtTheLimit(t *testing.T) {
	const limit, trusted = 20, 20 - unauthenticatedConnections
	clients := &pipes{}
	var log strings.Builder
	c := newConnections(clients, limit, slog.New(slog.NewTextHandler(&log, nil)))
	for range limit {
		accept(t, c)
	}
	for i := range limit {
		if clients.ended(i) {
			t.Fatalf("connection %d was closed below the limit", i)
		}
	}
	newest := accept(t, c)
	for i := range limit + 1 {
		if clients.ended(i) != (i == 0) {
			t.Errorf("connection %d is closed: %t, want %t", i, i != 0, i == 0)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("got %d lines in the log, want 1: %s", n, log.String())
	}
	if newest.Close(); c.count().Open != limit-1 || newest.Close() != nil || c.count().Open != limit-1 {
		t.Errorf("%+v", c.count())
	}
	var admitted []*connection
	for range trusted {
		conn := accept(t, c)
		for range 2 { // a second request on the connection is also admitted
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
	first := len(clients.clients) - trusted - 1
	for range 10 * limit {
		accept(t, c)
	}
	for i := range trusted {
		if clients.ended(first + i) {
			t.Errorf("authenticated connection %d was closed", i)
		}
	}
	if got := c.count(); got.Open != limit || got.Authenticated != trusted || got.Refused != 1 {
		t.Errorf("%+v", got)
	}
	if !clients.ended(first + trusted) {
		t.Error("a refused connection counts as authenticated")
	}
	admitted[0].Close()
	if another := accept(t, c); !another.admit() {
		t.Errorf("refused: %+v", c.count())
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("got %d lines in the log within a second, want 1: %s", n, log.String())
	}
}

// TestDescriptorsRunOut checks that an unauthenticated connection is closed if the system has no file descriptor for a
// new one.
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

// TestAdmission checks that admission finds the connection below TLS.
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

// TestReserve checks how many file descriptors are available for connections.
func TestReserve(t *testing.T) {
	for files, want := range map[uint64]int{0: 16, 20: 16, 64: 32, 256: 128, 1024: 704, 4096: 3072, 1 << 20: 3 << 18,
		1<<63 - 1: 1<<31 - 1} {
		if got := maxConnections(files); got != want {
			t.Errorf("got %[2]d connections for %[1]d files, want %[3]d", files, got, want)
		}
	}
}
