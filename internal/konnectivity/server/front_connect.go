package server

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
)

const (
	headerTime  = 10 * time.Second // for a request to arrive
	headerBytes = 16 << 10
)

// serveConnect serves API servers that ask by HTTP CONNECT (RFC 9110, 9.3.6).
func (s *Server) serveConnect(l net.Listener) error {
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	server := &http.Server{
		Handler:           http.HandlerFunc(s.connect),
		ReadHeaderTimeout: headerTime,
		MaxHeaderBytes:    headerBytes,
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){}, // CONNECT is asked for by HTTP/1.1
	}
	if err := server.Serve(l); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// connect serves a request for a connection.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "this proxy only supports CONNECT passthrough", http.StatusMethodNotAllowed)
		return
	}
	conn, early, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = conn.SetDeadline(time.Time{})
	front := &connectFront{conn: conn, server: s}
	front.early, _ = early.Reader.Peek(early.Reader.Buffered())
	s.open.Add(1)
	s.dial(r.Host, front.answered)
}

// connectFront is a connection of an API server that has asked for another.
type connectFront struct {
	conn   net.Conn
	early  []byte // what has come behind the request
	server *Server
}

func (f *connectFront) answered(other tunnel.Joint, err error) {
	if err != nil {
		go f.refuse(err)
		return
	}
	socket := tunnel.NewSocket(f.conn, f.server.open.Done)
	other.Join(socket)
	socket.Send(h2.BufferOf([]byte("HTTP/1.1 200 Connection Established\r\n\r\n")))
	if len(f.early) > 0 {
		other.Send(h2.BufferOf(f.early))
	}
	socket.Join(other)
}

// refuse says why there is no connection.
func (f *connectFront) refuse(err error) {
	defer f.server.open.Done()
	status, text := http.StatusBadGateway, err.Error()
	switch {
	case errors.Is(err, ErrNoAgent):
		status, text = http.StatusServiceUnavailable, "currently no tunnels available: "+text // the reference's words
	case strings.Contains(text, "timeout"), strings.Contains(text, "timed out"), strings.Contains(text, "deadline exceeded"):
		status = http.StatusGatewayTimeout
	}
	_ = f.conn.SetWriteDeadline(time.Now().Add(headerTime))
	out := bufio.NewWriter(f.conn)
	fmt.Fprintf(out, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", status, http.StatusText(status), len(text), text)
	_ = out.Flush()
	_ = f.conn.Close()
}
