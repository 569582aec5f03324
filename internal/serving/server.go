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

// The limits of a connection are upstream's.
const (
	maxHeaderBytes    = 1 << 20
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 90 * time.Second
	// writeTimeout bounds how long a client may take over a response; streams and long lists
	// set deadlines of their own.
	writeTimeout = 2 * time.Minute
	maxStreams   = 100
	streamBuffer = 256 << 10
)

// shutdownPatience is how long requests in flight may take to finish; upstream's request
// timeout.
const shutdownPatience = 60 * time.Second

// Server is a server of HTTPS, version 1.1 and 2.
type Server struct {
	http        *http.Server
	connections *connections
	draining    atomic.Bool
}

// New returns a Server for a listener, which it closes at its end. files is the number of files that the process may have open, which
// bounds the connections; 0 is the system's limit.
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
		ConnState: s.sendAwayLate,
	}
	return s
}

// Serve returns when the Server is drained, or cannot go on.
func (s *Server) Serve() error {
	if err := s.http.ServeTLS(s.connections.listener(), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// Connections returns the figures of the connections of now.
func (s *Server) Connections() Connections { return s.connections.count() }

// Drain closes the listener and waits for the requests. Watches would never end by
// themselves, so end, the handler's own, ends them meanwhile.
func (s *Server) Drain(end func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownPatience)
	defer cancel()
	s.draining.Store(true)
	go end()
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests in flight did not finish in %s: %w", shutdownPatience, err), s.http.Close())
	}
	return nil
}

// latePatience is how long a connection may be idle that nobody has told to go away.
const latePatience = time.Second

// sendAwayLate closes connections whose handshake ended after the server had begun to shut down: net/http tells only those of
// HTTP/2 to go away that it knows by then, and would wait for the others until they leave by themselves.
func (s *Server) sendAwayLate(c net.Conn, state http.ConnState) {
	if state == http.StateIdle && s.draining.Load() {
		time.AfterFunc(latePatience, func() { _ = c.Close() })
	}
}
