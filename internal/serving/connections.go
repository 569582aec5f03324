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
	// A quarter of the process's file descriptors is reserved, but at least reservedFiles and at most a half. The
	// reserved ones are for the store, which opens up to 266 files, for the log, for connections to other servers such
	// as webhooks, and for files that are reloaded. All others are for connections of clients.
	reservedShare = 4
	reservedFiles = 320
	// unauthenticatedConnections is the number of connections that authenticated clients cannot use. They are for
	// health checks and for clients that have not authenticated yet.
	unauthenticatedConnections = 8
	// unknownFiles is the limit of file descriptors if the system does not report one.
	unknownFiles = 1024
)

// maxConnections returns the maximum number of connections for a process with the given limit of open files.
func maxConnections(files uint64) int {
	reserved := min(max(files/reservedShare, reservedFiles), files/2)
	return int(min(max(files-reserved, 2*unauthenticatedConnections), math.MaxInt32))
}

// openFiles returns the process's limit of open files. Go raises the soft limit to the hard limit when a process
// starts.
func openFiles() uint64 {
	files := syscall.Rlimit{Cur: unknownFiles}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)
	return uint64(files.Cur)
}

// connections is a listener that limits the number of its open connections. At the limit, it closes the oldest
// unauthenticated connection for a new one. Authenticated connections are never closed. Their number is limited, so
// that some connections remain for unauthenticated clients.
type connections struct {
	net.Listener
	limit  int
	logger *slog.Logger
	often  rate.Sometimes

	mu            sync.Mutex
	open          int
	authenticated int
	waiting       list.List // unauthenticated *connections, the oldest first
	closed        int       // number of waiting connections that were closed for new ones
	refused       int       // number of authenticated clients rejected at the limit
}

func newConnections(l net.Listener, limit int, logger *slog.Logger) *connections {
	return &connections{Listener: l, limit: limit, logger: logger, often: rate.Sometimes{Interval: time.Second}}
}

// connection is a connection opened by a client.
type connection struct {
	net.Conn
	listener *connections
	element  *list.Element // element of the connection in waiting; nil means authenticated
	closed   bool

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

// Accept implements net.Listener. The process may reach its limit of open files although some files are reserved.
// Accept then closes the oldest unauthenticated connection and returns the error. The caller, net/http, calls Accept
// again.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		c.mu.Lock()
		oldest := c.evict()
		c.mu.Unlock()
		oldest.drop()
		c.often.Do(func() {
			c.logger.Warn("cannot accept a connection: no file descriptor is left; "+
				"raise the limit of open files (ulimit -n)", "error", err)
		})
	}
	if err != nil {
		return nil, err
	}
	return c.add(conn), nil
}

// add adds a new connection.
func (c *connections) add(conn net.Conn) *connection {
	c.mu.Lock()
	var oldest *connection
	if c.open >= c.limit {
		oldest = c.evict()
	}
	c.open++
	added := &connection{Conn: conn, listener: c}
	added.element = c.waiting.PushBack(added)
	closed := c.closed
	c.mu.Unlock()
	if oldest.drop() {
		c.often.Do(func() {
			c.logger.Warn("too many connections: closed the oldest unauthenticated connection; "+
				"raise the limit of open files (ulimit -n)",
				"connections", c.limit, "closed", closed, "from", oldest.RemoteAddr())
		})
	}
	return added
}

// evict removes the oldest unauthenticated connection. It returns nil if there is none. The caller must hold mu, and
// call drop on the connection after it has released mu.
func (c *connections) evict() *connection {
	oldest := c.waiting.Front()
	if oldest == nil {
		return nil
	}
	c.closed++
	conn := oldest.Value.(*connection)
	c.remove(conn)
	return conn
}

// remove removes a connection from the counts. The caller must hold mu.
func (c *connections) remove(conn *connection) {
	if conn.closed {
		return
	}
	conn.closed = true
	c.open--
	if conn.element == nil {
		c.authenticated--
		return
	}
	c.waiting.Remove(conn.element)
}

// drop closes an evicted connection without a TLS close_notify, which the client could delay. It returns false if conn
// is nil.
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
	conn.listener.mu.Lock()
	defer conn.listener.mu.Unlock()
	conn.listener.remove(conn)
	return err
}

// admit counts the connection as authenticated. It returns false if there are too many authenticated connections. The
// connection then remains unauthenticated and may be evicted.
func (conn *connection) admit() bool {
	c := conn.listener
	c.mu.Lock()
	admitted := conn.element == nil || conn.closed || c.authenticated < c.limit-unauthenticatedConnections
	if !admitted {
		c.refused++
	} else if conn.element != nil && !conn.closed {
		c.waiting.Remove(conn.element)
		conn.element = nil
		c.authenticated++
	}
	refused := c.refused
	c.mu.Unlock()
	if !admitted {
		c.often.Do(func() {
			c.logger.Warn("too many connections: rejected an authenticated client; "+
				"raise the limit of open files (ulimit -n)",
				"connections", c.limit, "refused", refused, "from", conn.RemoteAddr())
		})
	}
	return admitted
}

// admission returns the admit method of a connection of the http.Server, or nil.
func admission(c net.Conn) func() bool {
	if tlsConn, ok := c.(*tls.Conn); ok {
		if below, ok := tlsConn.NetConn().(interface{ NetConn() net.Conn }); ok {
			if conn, ok := below.NetConn().(*connection); ok {
				return conn.admit
			}
		}
	}
	return nil
}

// listener returns the listener for the http.Server.
func (c *connections) listener() net.Listener { return tlsbatch.Listener{Listener: c} }

// Connections contains statistics about the connections of a Server.
type Connections struct {
	Limit, Open, Authenticated int
	// Closed is the number of unauthenticated connections that were closed for new connections since the start.
	Closed int
	// Refused is the number of authenticated clients rejected since the start.
	Refused int
}

// count returns the current statistics.
func (c *connections) count() Connections {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Connections{Limit: c.limit, Open: c.open, Authenticated: c.authenticated, Closed: c.closed,
		Refused: c.refused}
}
