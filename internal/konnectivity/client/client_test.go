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

// balanced is several tunnel servers behind one address, whose connections lead to the one that is ready.
type balanced struct {
	t     *testing.T
	ready tunnel.DialFunc
	most  uint32 // streams of a connection; 0: no limit
	made  int    // connections
}

func (b *balanced) connect(context.Context) (net.Conn, error) {
	b.made++
	near, far := net.Pipe()
	dials := b.ready
	server := h2.NewServer(far, h2.Options{MaxStreams: b.most, Accept: func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		p := &tunnel.Packets{Dialer: dials}
		p.Bind(s)
		s.Header(wire.Response(), false)
		return p
	}})
	go func() { _ = server.Run() }()
	b.t.Cleanup(func() { server.Close(nil) })
	return near, nil
}

// noAgents is a server without one.
func noAgents(_ string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
	answered(nil, errors.New(wire.NoAgent))
	return func() {}
}

// echoes is a server with an agent.
func echoes(_ string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
	near, far := net.Pipe()
	go func() {
		_, _ = io.Copy(far, far)
		_ = far.Close()
	}()
	socket := tunnel.NewSocket(near, func() {})
	answered(socket, nil)
	return func() {}
}

// dials fails the test unless a dial ends as it should, "" for a connection, which is returned.
func dials(t *testing.T, c *Client, want string) net.Conn {
	t.Helper()
	conn, err := c.DialContext(t.Context(), "tcp", "192.0.2.1:80")
	if (err == nil) != (want == "") || err != nil && err.Error() != want {
		t.Fatalf("%v, want %q", err, want)
	}
	return conn
}

// KON-054, KON-055: a server that has lost its agents is left for one that has some, by the dial that finds out, and by all others that
// find out at the same time.
func TestServerWithoutAgentsIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &balanced{t: t, ready: noAgents}
		asked, answers := 0, make(chan struct{})
		b.ready = func(address string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
			asked++
			go func() {
				<-answers // to all at once
				noAgents(address, answered)
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
		b.ready = echoes
		close(answers)
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if asked != cap(ended) || b.made != 2 {
			t.Errorf("the first server was asked %d times, and %d connections were made", asked, b.made)
		}
	})
}

// KON-054: where no server has an agent a dial says so at once, and connections are made one a second and no more.
func TestNoServerHasAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &balanced{t: t, ready: noAgents}
		c := New(b.connect)
		defer c.Close()
		began := time.Now()
		for range 20 {
			dials(t, c, wire.NoAgent)
		}
		if b.made != 2 || time.Now() != began {
			t.Errorf("%d connections in %v, want 2", b.made, time.Since(began))
		}
		<-time.After(reconnectInterval) // of a clock that does not wait
		dials(t, c, wire.NoAgent)
		dials(t, c, wire.NoAgent)
		if b.made != 3 {
			t.Errorf("%d connections a second later, want 3", b.made)
		}
	})
}

// KON-053: what goes through a connection that is left, as there are no agents for something else, goes on.
func TestLeftConnectionGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		has := true
		b := &balanced{t: t, ready: func(address string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
			if has {
				return echoes(address, answered)
			}
			return noAgents(address, answered)
		}}
		c := New(b.connect)
		defer c.Close()
		conn := dials(t, c, "")
		has = false
		dials(t, c, wire.NoAgent)
		if b.made != 2 {
			t.Errorf("%d connections, want 2", b.made)
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

// KON-044: what is between an API server and the tunnel server may take fewer streams of a connection than there are connections to make:
// then there is another one.
func TestFewStreamsOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &balanced{t: t, ready: echoes, most: 2}
		c := New(b.connect)
		defer c.Close()
		var all []net.Conn
		for range 5 {
			all = append(all, dials(t, c, ""))
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
		if b.made != 3 {
			t.Errorf("%d connections for 5 dials, with 2 streams each", b.made)
		}
	})
}

// KON-053: a connection whose stream ends without a word of the connection is broken, though gRPC calls it OK.
func TestStreamEndsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stream *h2.Stream
		near, far := net.Pipe()
		server := h2.NewServer(far, h2.Options{Accept: func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
			stream = s
			p := &tunnel.Packets{Dialer: echoes}
			p.Bind(s)
			s.Header(wire.Response(), false)
			return p
		}})
		go func() { _ = server.Run() }()
		defer server.Close(nil)
		c := New(func(context.Context) (net.Conn, error) { return near, nil })
		defer c.Close()
		conn := dials(t, c, "")
		stream.Header(wire.Trailer(wire.OK, ""), true)
		if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("it ends with %v", err)
		}
	})
}
