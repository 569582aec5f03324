package serving

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/trellis-k8s/trellis/internal/access"
)

// The limits of a connection equal upstream's.
const (
	maxHeaderBytes    = 1 << 20
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 90 * time.Second
	// writeTimeout limits how long a client may take to read a response. The handlers of streams and long lists set
	// other deadlines.
	writeTimeout = 2 * time.Minute
	maxStreams   = 100
	streamBuffer = 256 << 10
)

// shutdownTimeout is how long Drain waits for requests in flight. It equals upstream's request timeout.
const shutdownTimeout = 60 * time.Second

// Server is an HTTPS server for HTTP/1.1 and HTTP/2.
type Server struct {
	http        *http.Server
	connections *connections
	draining    atomic.Bool
}

// New returns a Server for a listener, which the Server closes. files is the process's limit of open files. It limits
// the number of connections. 0 means the limit that the system reports.
func New(l net.Listener, handler http.Handler, tlsConfig *tls.Config, files uint64, logger *slog.Logger) *Server {
	s := &Server{connections: newConnections(l, maxConnections(cmp.Or(files, openFiles())), logger)}
	s.http = &http.Server{
		Handler:   handler,
		TLSConfig: tlsConfig,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              streamBuffer,
			MaxReceiveBufferPerStream:     streamBuffer,
			MaxReceiveBufferPerConnection: maxStreams * streamBuffer,
		},
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		WriteTimeout:      writeTimeout,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return access.ConnContext(ctx, admission(c))
		},
		ErrorLog:  log.New(quietHandshakes{logger}, "", 0),
		ConnState: s.closeLateIdle,
	}
	return s
}

// Serve blocks until the Server is drained or fails.
func (s *Server) Serve() error {
	if err := s.http.ServeTLS(s.connections.listener(), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// Connections returns the current statistics about connections.
func (s *Server) Connections() Connections { return s.connections.count() }

// Drain closes the listener and waits for requests in flight. In the meantime it calls end. The function end must end
// the watches, because clients usually do not end them.
func (s *Server) Drain(end func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	s.draining.Store(true)
	go end()
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests in flight did not finish within %s: %w", shutdownTimeout, err),
			s.http.Close())
	}
	return nil
}

// lateTimeout is how long a connection without a GOAWAY may be idle during the shutdown.
const lateTimeout = time.Second

// closeLateIdle closes connections whose handshake completed after the shutdown started. At the start of the shutdown,
// net/http sends GOAWAY on the HTTP/2 connections that exist. It would wait until clients close connections that are
// established later.
func (s *Server) closeLateIdle(c net.Conn, state http.ConnState) {
	if state == http.StateIdle && s.draining.Load() {
		time.AfterFunc(lateTimeout, func() { _ = c.Close() })
	}
}
