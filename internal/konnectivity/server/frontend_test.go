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

// fronts opens the port for API servers, without TLS.
func fronts(t *testing.T, s *Server, mode Mode) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { _ = s.ServeFrontends(l, mode) }()
	return l.Addr().String()
}

// mute is a connection of which nothing arrives from when it is silent.
type mute struct {
	net.Conn
	silent atomic.Bool
}

func (m *mute) Write(p []byte) (int, error) {
	if m.silent.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

// welcomed is told that a stream has been answered.
type welcomed chan bool

func (w welcomed) Header(*h2.Stream, []hpack.HeaderField, bool) { close(w) }
func (w welcomed) Data(*h2.Stream, *h2.Buffer, bool)            {}
func (w welcomed) Ended(*h2.Stream, error)                      {}

// KON-034, KON-053: an API server that has gone without a word is given up after --frontend-keepalive-time and as long again.
func TestSilentFront(t *testing.T) {
	s := New(Options{Strategies: []Strategy{Default}, Logger: slog.New(slog.DiscardHandler), KeepaliveTime: time.Hour, FrontendKeepaliveTime: 50 * time.Millisecond})
	link := &mute{Conn: dialFrom(t, "127.0.0.1", fronts(t, s, ModeGRPC))}
	front := h2.NewClient(link, h2.Options{})
	go func() { _ = front.Run() }()
	defer front.Close(nil)
	answered := make(welcomed)
	if _, err := front.Open(func(*h2.Stream) h2.Receiver { return answered }, wire.Request(wire.ProxyMethod, "tunnel", false), false); err != nil {
		t.Fatal(err)
	}
	<-answered
	link.silent.Store(true)
	select {
	case <-front.Done():
	case <-time.After(patience):
		t.Errorf("it is kept after %v", patience)
	}
}

// KON-051, KON-054: a dial that an agent does not answer in time is answered with 504, and the reference's words.
func TestConnectTimesOut(t *testing.T) {
	s, agents := door(t, nil, slog.DiscardHandler)
	s.options.DialTimeout = 10 * time.Millisecond
	if err := knockAt(t, agents, "says nothing", "").told(t); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is there", s.Ready)
	c := dialFrom(t, "127.0.0.1", fronts(t, s, ModeHTTPConnect))
	if _, err := fmt.Fprint(c, "CONNECT 192.0.2.1:80 HTTP/1.1\r\nHost: 192.0.2.1:80\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	why, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusGatewayTimeout || !strings.Contains(string(why), errDialTimeout.Error()) {
		t.Errorf("answered with %s: %s", resp.Status, why)
	}
}
