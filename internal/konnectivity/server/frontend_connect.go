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

// serveConnect serves API servers that request connections with HTTP CONNECT (RFC 9110, 9.3.6).
func (s *Server) serveConnect(l net.Listener) error {
	server := &http.Server{
		Handler:           http.HandlerFunc(s.serveConnectRequest),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       headerTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelWarn),
		// An empty map disables HTTP/2: API servers send CONNECT with HTTP/1.1.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	s.mu.Lock()
	s.listeners, s.httpServers = append(s.listeners, l), append(s.httpServers, server)
	s.mu.Unlock()
	if err := server.Serve(l); !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveConnectRequest serves a request for a connection. It cancels the dial when the client disconnects.
func (s *Server) serveConnectRequest(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "this proxy only supports CONNECT passthrough", http.StatusMethodNotAllowed)
		return
	}
	release, err := s.trackConnection(s.metrics.httpConnections)
	if err != nil {
		rejectConnect(w, err)
		return
	}
	result := make(chan error, 1)
	cancel := s.dial(r.Host, func(peer tunnel.UnpairedEndpoint, err error) {
		if err == nil {
			err = pairWithRequest(w, peer, release)
		}
		result <- err
	})
	stop := context.AfterFunc(r.Context(), cancel)
	err = <-result
	if stop(); err != nil {
		release()
		rejectConnect(w, err)
	}
}

// pairWithRequest pairs the connection of the request with an Endpoint. It calls done when the tunnelled
// connection ends.
func pairWithRequest(w http.ResponseWriter, peer tunnel.UnpairedEndpoint, done func()) error {
	conn, early, err := http.NewResponseController(w).Hijack()
	if err != nil {
		peer.Close(err)
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	socket := tunnel.NewSocket(conn, done)
	peer.Pair(socket)
	socket.Send(h2.BufferOf([]byte("HTTP/1.1 200 Connection Established\r\n\r\n")))
	// The client may have sent data after the request.
	if sent, _ := early.Reader.Peek(early.Reader.Buffered()); len(sent) > 0 {
		peer.Send(h2.BufferOf(sent))
	}
	socket.Pair(peer)
	return nil
}

// rejectConnect answers a request with an error.
func rejectConnect(w http.ResponseWriter, err error) {
	status, text := http.StatusBadGateway, err.Error()
	switch {
	case errors.Is(err, errNoAgent):
		status = http.StatusServiceUnavailable
		text = "currently no tunnels available: " + text // message of the reference server
	case errors.Is(err, errShuttingDown):
		status = http.StatusServiceUnavailable
	case strings.Contains(text, "timeout"),
		strings.Contains(text, "timed out"),
		strings.Contains(text, "deadline exceeded"):
		status = http.StatusGatewayTimeout
	}
	w.Header().Set("Connection", "close")
	http.Error(w, text, status)
}
