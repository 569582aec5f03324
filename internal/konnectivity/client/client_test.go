package client

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// balancer is one address of several tunnel servers. New connections lead to the server that is ready.
type balancer struct {
	t           *testing.T
	dial        tunnel.DialFunc // the dialer of the server that is ready
	maxStreams  uint32          // maximum number of streams of a connection; 0 means no limit
	connections int
}

func (b *balancer) connect(context.Context) (net.Conn, error) {
	b.connections++
	near, far := net.Pipe()
	dial := b.dial
	server := h2.NewServer(far, h2.Options{MaxStreams: b.maxStreams,
		Accept: func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
			p := &tunnel.Packets{Dialer: dial}
			p.Bind(s)
			s.Header(wire.Response(), false)
			return p
		}})
	go func() { _ = server.Run() }()
	b.t.Cleanup(func() { server.Close(nil) })
	return near, nil
}

// dialNoAgent is the dialer of a tunnel server without agents.
func dialNoAgent(_ string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
	answered(nil, errors.New(wire.NoAgent))
	return func() {}
}

// dialEcho is the dialer of a tunnel server with an agent. Its destination echoes.
func dialEcho(_ string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
	near, far := net.Pipe()
	go func() {
		_, _ = io.Copy(far, far)
		_ = far.Close()
	}()
	socket := tunnel.NewSocket(near, func() {})
	answered(socket, nil)
	return func() {}
}

// checkDial dials and returns the connection. It fails the test unless the error has the text in want. An empty
// text means that the dial must succeed.
func checkDial(t *testing.T, c *Client, want string) net.Conn {
	t.Helper()
	conn, err := c.DialContext(t.Context(), "tcp", "192.0.2.1:80")
	if (err == nil) != (want == "") || err != nil && err.Error() != want {
		t.Fatalf("DialContext: error %v, want %q", err, want)
	}
	return conn
}

// TestReconnectWithoutAgents checks that a client whose tunnel server has lost its agents reconnects to a tunnel
// server that has agents. Concurrent dials that receive the same error share the new connection (KON-054,
// KON-055).
func TestReconnectWithoutAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &balancer{t: t, dial: dialNoAgent}
		requests, respond := 0, make(chan struct{})
		b.dial = func(address string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
			requests++
			go func() {
				<-respond // all dials are answered at the same time
				dialNoAgent(address, answered)
			}()
			return func() {}
		}
		c := New(b.connect)
		defer c.Close()
		ended := make(chan error, 10)
		for range cap(ended) {
			go func() {
				conn, err := c.DialContext(t.Context(), "tcp", "192.0.2.1:80")
				if err == nil {
					_ = conn.Close()
				}
				ended <- err
			}()
		}
		synctest.Wait()
		b.dial = dialEcho
		close(respond)
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if requests != cap(ended) || b.connections != 2 {
			t.Errorf("first server: %d dials, want %d; %d connections, want 2", requests, cap(ended), b.connections)
		}
	})
}

// TestNoServerHasAgents checks that dials fail at once if no server has an agent, and that the client
// reconnects at most once per second (KON-054).
func TestNoServerHasAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &balancer{t: t, dial: dialNoAgent}
		c := New(b.connect)
		defer c.Close()
		began := time.Now()
		for range 20 {
			checkDial(t, c, wire.NoAgent)
		}
		if b.connections != 2 || time.Now() != began {
			t.Errorf("%d connections in %v, want 2 at once", b.connections, time.Since(began))
		}
		<-time.After(reconnectInterval)
		checkDial(t, c, wire.NoAgent)
		checkDial(t, c, wire.NoAgent)
		if b.connections != 3 {
			t.Errorf("%d connections a second later, want 3", b.connections)
		}
	})
}

// TestReconnectKeepsStreams checks that open streams of a replaced connection continue (KON-053).
func TestReconnectKeepsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hasAgent := true
		b := &balancer{t: t, dial: func(address string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
			if hasAgent {
				return dialEcho(address, answered)
			}
			return dialNoAgent(address, answered)
		}}
		c := New(b.connect)
		defer c.Close()
		conn := checkDial(t, c, "")
		hasAgent = false
		checkDial(t, c, wire.NoAgent)
		if b.connections != 2 {
			t.Errorf("%d connections, want 2", b.connections)
		}
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	})
}

// TestStreamLimit checks that the client opens another connection when the limit of streams is reached. A
// proxy between the API server and the tunnel server may set a low limit (KON-044).
func TestStreamLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &balancer{t: t, dial: dialEcho, maxStreams: 2}
		c := New(b.connect)
		defer c.Close()
		var all []net.Conn
		for range 5 {
			all = append(all, checkDial(t, c, ""))
			synctest.Wait()
		}
		for _, conn := range all {
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				t.Error(err)
			}
			_ = conn.Close()
		}
		if b.connections != 3 {
			t.Errorf("%d connections for 5 dials with 2 streams each, want 3", b.connections)
		}
	})
}

// TestLostConnection checks that a dial succeeds although the connection to the tunnel server ends during the dial, as
// when the tunnel server restarts. A dial whose second connection ends as well fails, and so does a dial of a closed
// client (KON-053).
func TestLostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &balancer{t: t, dial: dialEcho}
		ends := 0 // number of connections that end during their first dial
		c := New(func(ctx context.Context) (conn net.Conn, err error) {
			if b.dial = dialEcho; ends > 0 {
				ends--
				b.dial = func(string, func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
					_ = conn.Close()
					return func() {}
				}
			}
			return b.connect(ctx)
		})
		for _, ends = range []int{1, 2} {
			want := map[int]string{1: "", 2: "tunnel connection lost: io: read/write on closed pipe"}[ends]
			b.connections = 0
			if conn := checkDial(t, c, want); conn != nil {
				_ = conn.Close()
			}
			if b.connections != 2 {
				t.Errorf("%d connections, want 2", b.connections)
			}
			c.mu.Lock()
			c.conn.Retire()
			c.mu.Unlock()
		}
		c.Close()
		if _, err := c.DialContext(t.Context(), "tcp", "192.0.2.1:80"); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dial of a closed client: %v", err)
		}
	})
}

// TestStreamEndWithoutClose checks that a stream which ends with status OK, but without a CLOSE packet, breaks
// its connection (KON-053).
func TestStreamEndWithoutClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stream *h2.Stream
		near, far := net.Pipe()
		server := h2.NewServer(far, h2.Options{Accept: func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
			stream = s
			p := &tunnel.Packets{Dialer: dialEcho}
			p.Bind(s)
			s.Header(wire.Response(), false)
			return p
		}})
		go func() { _ = server.Run() }()
		defer server.Close(nil)
		c := New(func(context.Context) (net.Conn, error) { return near, nil })
		defer c.Close()
		conn := checkDial(t, c, "")
		stream.Header(wire.Trailer(wire.OK, ""), true)
		if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("the connection ends with %v, want an error other than EOF", err)
		}
	})
}
