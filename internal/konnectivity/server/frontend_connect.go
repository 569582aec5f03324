package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
)

const (
	headerTimeout  = 10 * time.Second // for a request to arrive
	maxHeaderBytes = 16 << 10
)

// serveConnect serves API servers that ask by HTTP CONNECT (RFC 9110, 9.3.6).
func (s *Server) serveConnect(l net.Listener) error {
	server := &http.Server{
		Handler:           http.HandlerFunc(s.serveConnectRequest),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       headerTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){}, // CONNECT is asked for by HTTP/1.1
		ErrorLog:          slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelWarn),
	}
	s.mu.Lock()
	s.listeners, s.httpServers = append(s.listeners, l), append(s.httpServers, server)
	s.mu.Unlock()
	if err := server.Serve(l); !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveConnectRequest serves a request for a connection. When who asks goes away, so does the dial.
func (s *Server) serveConnectRequest(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "this proxy only supports CONNECT passthrough", http.StatusMethodNotAllowed)
		return
	}
	leave, err := s.trackConnection(s.metrics.httpConnections)
	if err != nil {
		rejectConnect(w, err)
		return
	}
	answered := make(chan error, 1)
	cancel := s.dial(r.Host, func(other tunnel.UnpairedEndpoint, err error) {
		if err == nil {
			err = pairWithRequest(w, other, leave)
		}
		answered <- err
	})
	stop := context.AfterFunc(r.Context(), cancel)
	err = <-answered
	if stop(); err != nil {
		leave()
		rejectConnect(w, err)
	}
}

// pairWithRequest makes the connection of a request the other End of one through the tunnel, and calls leave when it is over.
func pairWithRequest(w http.ResponseWriter, other tunnel.UnpairedEndpoint, leave func()) error {
	conn, early, err := http.NewResponseController(w).Hijack()
	if err != nil {
		other.Close(err)
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	socket := tunnel.NewSocket(conn, leave)
	other.Pair(socket)
	socket.Send(h2.BufferOf([]byte("HTTP/1.1 200 Connection Established\r\n\r\n")))
	if sent, _ := early.Reader.Peek(early.Reader.Buffered()); len(sent) > 0 { // behind the request
		other.Send(h2.BufferOf(sent))
	}
	socket.Pair(other)
	return nil
}

// rejectConnect says why there is no connection.
func rejectConnect(w http.ResponseWriter, err error) {
	status, text := http.StatusBadGateway, err.Error()
	switch {
	case errors.Is(err, errNoAgent):
		status, text = http.StatusServiceUnavailable, "currently no tunnels available: "+text // the reference's words
	case errors.Is(err, errShuttingDown):
		status = http.StatusServiceUnavailable
	case strings.Contains(text, "timeout"), strings.Contains(text, "timed out"), strings.Contains(text, "deadline exceeded"):
		status = http.StatusGatewayTimeout
	}
	w.Header().Set("Connection", "close")
	http.Error(w, text, status)
}
