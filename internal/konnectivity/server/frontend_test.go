package server

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// serveFrontends accepts API servers without TLS.
func serveFrontends(t *testing.T, s *Server, mode Mode) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { _ = s.ServeFrontends(l, mode) }()
	return l.Addr().String()
}

// silentConn is a connection that discards all writes while it is silent.
type silentConn struct {
	net.Conn
	silent atomic.Bool
}

func (m *silentConn) Write(p []byte) (int, error) {
	if m.silent.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

// headerSignal is a Receiver that closes the channel when the response header arrives.
type headerSignal chan bool

func (w headerSignal) Header(*h2.Stream, []hpack.HeaderField, bool) { close(w) }
func (w headerSignal) Data(*h2.Stream, *h2.Buffer, bool)            {}
func (w headerSignal) Ended(*h2.Stream, error)                      {}

// TestSilentFrontend checks that a silent API server is disconnected after twice --frontend-keepalive-time
// (KON-034, KON-053).
func TestSilentFrontend(t *testing.T) {
	s := New(Options{Strategies: []Strategy{Default}, Logger: slog.New(slog.DiscardHandler), KeepaliveTime: time.Hour,
		FrontendKeepaliveTime: 50 * time.Millisecond})
	link := &silentConn{Conn: dialFrom(t, "127.0.0.1", serveFrontends(t, s, ModeGRPC))}
	frontend := h2.NewClient(link, h2.Options{})
	go func() { _ = frontend.Run() }()
	defer frontend.Close(nil)
	answered := make(headerSignal)
	if _, err := frontend.Open(func(*h2.Stream) h2.Receiver { return answered },
		wire.Request(wire.ProxyMethod, "tunnel", false), false); err != nil {
		t.Fatal(err)
	}
	<-answered
	link.silent.Store(true)
	select {
	case <-frontend.Done():
	case <-time.After(testTimeout):
		t.Errorf("the API server is not disconnected within %v", testTimeout)
	}
}

// TestConnectTimeout checks that the response has status 504 if the agent does not answer a dial in time. The text
// equals that of the reference server (KON-051, KON-054).
func TestConnectTimeout(t *testing.T) {
	s, agents := startServer(t, nil, slog.DiscardHandler)
	s.options.DialTimeout = 10 * time.Millisecond
	if err := connectAgent(t, agents, "silent", "").waitResponse(t); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the agent is connected", s.Ready)
	c := dialFrom(t, "127.0.0.1", serveFrontends(t, s, ModeHTTPConnect))
	if _, err := fmt.Fprint(c, "CONNECT 192.0.2.1:80 HTTP/1.1\r\nHost: 192.0.2.1:80\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusGatewayTimeout || !strings.Contains(string(body), errDialTimeout.Error()) {
		t.Errorf("got %s: %s", resp.Status, body)
	}
}
