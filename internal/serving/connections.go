package serving

import (
	"container/list"
	"crypto/tls"
	"errors"
	"log/slog"
	"math"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

const (
	// A quarter of the process's file descriptors is not for connections of clients, and at least reservedFiles, but never
	// more than a half: it is for the store, which opens 266 at most, for the log, for connections to webhooks and other
	// servers, and for files that are read again.
	reservedShare = 4
	reservedFiles = 320
	// unauthenticatedConnections is the number of connections that authenticated clients can never use up. Health checks
	// and clients that are about to authenticate use them.
	unauthenticatedConnections = 8
	// unknownFiles is the limit of descriptors where the system does not report one.
	unknownFiles = 1024
)

// maxConnections returns the number of connections of a server whose process may have the given number of files open.
func maxConnections(files uint64) int {
	reserved := min(max(files/reservedShare, reservedFiles), files/2)
	return int(min(max(files-reserved, 2*unauthenticatedConnections), math.MaxInt32))
}

// openFiles returns the limit of the process. Go raises the soft limit to the hard one at the start of a process.
func openFiles() uint64 {
	files := syscall.Rlimit{Cur: unknownFiles}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)
	return uint64(files.Cur)
}

// connections is a listener that bounds the number of its open connections. At the limit it closes the oldest connection that never
// authenticated, in favour of the new one. Authenticated connections are never closed, and never use up the limit.
type connections struct {
	net.Listener
	most   int
	logger *slog.Logger
	often  rate.Sometimes

	mu            sync.Mutex
	open          int
	authenticated int
	waiting       list.List // of *connection that have not authenticated, the oldest first
	closed        int       // of these, to make space for another one
	refused       int       // that authenticated while there were too many of them
}

func newConnections(l net.Listener, most int, logger *slog.Logger) *connections {
	return &connections{Listener: l, most: most, logger: logger, often: rate.Sometimes{Interval: time.Second}}
}

// connection is one that a client has opened.
type connection struct {
	net.Conn
	of     *connections
	place  *list.Element // in waiting; nil: it has authenticated
	closed bool

	reading, writing pace
}

// Read implements net.Conn.
func (conn *connection) Read(p []byte) (int, error) {
	conn.reading.yield()
	return conn.Conn.Read(p)
}

// Write implements net.Conn.
func (conn *connection) Write(p []byte) (int, error) {
	conn.writing.yield()
	return conn.Conn.Write(p)
}

// Accept implements net.Listener. The process may reach its limit in spite of the reserve: then the oldest connection that never
// authenticated is closed as well, and the caller accepts again.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		c.mu.Lock()
		oldest := c.evict()
		c.mu.Unlock()
		oldest.drop()
		c.often.Do(func() {
			c.logger.Warn("accept a connection: the process has no file descriptor left; raise its limit (ulimit -n)", "error", err)
		})
	}
	if err != nil {
		return nil, err
	}
	return c.add(conn), nil
}

// add counts a new connection.
func (c *connections) add(conn net.Conn) *connection {
	c.mu.Lock()
	var oldest *connection
	if c.open >= c.most {
		oldest = c.evict()
	}
	c.open++
	added := &connection{Conn: conn, of: c}
	added.place = c.waiting.PushBack(added)
	closed := c.closed
	c.mu.Unlock()
	if oldest.drop() {
		c.often.Do(func() {
			c.logger.Warn("too many connections: the oldest one that never authenticated is closed; raise the limit of open files (ulimit -n)",
				"connections", c.most, "closed", closed, "from", oldest.RemoteAddr())
		})
	}
	return added
}

// evict takes the oldest connection that never authenticated out of the count. It returns nil where there is none. The caller holds mu,
// and drops the connection once it does not.
func (c *connections) evict() *connection {
	oldest := c.waiting.Front()
	if oldest == nil {
		return nil
	}
	c.closed++
	conn := oldest.Value.(*connection)
	c.forget(conn)
	return conn
}

// forget takes a connection out of the count. The caller holds mu.
func (c *connections) forget(conn *connection) {
	if conn.closed {
		return
	}
	conn.closed = true
	c.open--
	if conn.place == nil {
		c.authenticated--
		return
	}
	c.waiting.Remove(conn.place)
}

// drop closes an evicted connection without an orderly end, which its client could delay. It returns false for nil.
func (conn *connection) drop() bool {
	if conn == nil {
		return false
	}
	_ = conn.Conn.Close()
	return true
}

// Close implements net.Conn.
func (conn *connection) Close() error {
	err := conn.Conn.Close()
	conn.of.mu.Lock()
	defer conn.of.mu.Unlock()
	conn.of.forget(conn)
	return err
}

// admit counts the connection as authenticated. It returns false where there are too many of these already: the connection then stays
// one that may be closed for another.
func (conn *connection) admit() bool {
	c := conn.of
	c.mu.Lock()
	admitted := conn.place == nil || conn.closed || c.authenticated < c.most-unauthenticatedConnections
	if !admitted {
		c.refused++
	} else if conn.place != nil && !conn.closed {
		c.waiting.Remove(conn.place)
		conn.place = nil
		c.authenticated++
	}
	refused := c.refused
	c.mu.Unlock()
	if !admitted {
		c.often.Do(func() {
			c.logger.Warn("too many connections: a client that authenticated is refused; raise the limit of open files (ulimit -n)",
				"connections", c.most, "refused", refused, "from", conn.RemoteAddr())
		})
	}
	return admitted
}

// admission returns the function that counts a connection of the http.Server as authenticated.
func admission(c net.Conn) func() bool {
	if secure, ok := c.(*tls.Conn); ok {
		if below, ok := secure.NetConn().(interface{ NetConn() net.Conn }); ok {
			if mine, ok := below.NetConn().(*connection); ok {
				return mine.admit
			}
		}
	}
	return nil
}

// listener returns what the http.Server accepts connections from.
func (c *connections) listener() net.Listener { return tlsbatch.Listener{Listener: c} }

// Connections are the figures of the connections of a Server.
type Connections struct {
	Limit, Open, Authenticated int
	Closed, Refused            int // since the start: closed for newer ones; refused though they authenticated
}

// count returns the figures of now.
func (c *connections) count() Connections {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Connections{Limit: c.most, Open: c.open, Authenticated: c.authenticated, Closed: c.closed, Refused: c.refused}
}
