package agent

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// leavingServer is a tunnel server with one agent, whose dials wait until they are let.
type leavingServer struct {
	tunnel.Packets
	t           *testing.T
	conn        *h2.Conn
	dial        tunnel.DialFunc
	session     *Session
	reads       *gate
	let         chan struct{}
	destination net.Conn
	ended       chan struct{} // the session has, as the agent sees it
}

// newLeavingServer is called in a bubble of synctest. It ends its side of a tunnel that the agent ends, unless it is deaf.
func newLeavingServer(t *testing.T, packets, deaf bool) *leavingServer {
	s := &leavingServer{t: t, let: make(chan struct{}), ended: make(chan struct{})}
	near, far := net.Pipe()
	s.reads = &gate{Conn: far}
	s.conn = h2.NewServer(s.reads, h2.Options{Accept: func(stream *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		s.Shared = true
		s.OnEnd = func(error) {
			if !deaf {
				stream.Close(wire.Trailer(wire.OK, ""))
			}
		}
		s.Bind(stream)
		metadata := []string{wire.ServerID, "A", wire.ServerCount, "1"}
		if s.dial = s.Dial; !packets {
			metadata, s.dial = append(metadata, wire.Tunnel, wire.TunnelByConnect), tunnel.Connect(s.conn)
		}
		stream.Header(wire.Response(metadata...), false)
		return s
	}})
	go s.conn.Run()
	var err error
	s.session, err = newSession(t.Context(), near, "a:1", Options{ID: "agent", Metrics: NewMetrics(), Dial: s.connect})
	if err != nil {
		t.Fatal(err)
	}
	if s.session.ServerIsTrellis() == packets {
		t.Errorf("the session to one that asks by packets: %v takes the server for Trellis': %v", packets, s.session.ServerIsTrellis())
	}
	go func() {
		defer close(s.ended)
		_ = s.session.Wait()
	}()
	return s
}

// gate is a connection of which nothing more is read, once it is shut, until that is closed.
type gate struct {
	net.Conn
	shut atomic.Pointer[chan struct{}]
}

func (g *gate) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if shut := g.shut.Load(); shut != nil {
		<-*shut
	}
	return n, err
}

func (s *leavingServer) connect(context.Context, string, string) (net.Conn, error) {
	<-s.let
	near, far := net.Pipe()
	s.destination = near
	return far, nil
}

// lasts fails the test unless the session goes on for a time.
func (s *leavingServer) lasts(while string) {
	s.t.Helper()
	<-time.After(time.Minute)
	if synctest.Wait(); isClosed(s.ended) {
		s.t.Fatalf("the session has ended while %s", while)
	}
}

func (s *leavingServer) endsWithin(d time.Duration) {
	s.t.Helper()
	<-time.After(d)
	if synctest.Wait(); !isClosed(s.ended) {
		s.t.Error("the session goes on without a connection")
	}
	s.session.Close()
}

// KON-053: the session to a server that is leaving goes on while a connection is open on it or dialled, also one that was asked for when the server
// had said so, and ends with the last. So it is with a session that leaves its server, as the agent has another to it (KON-055).
func TestSessionThatEndsWithItsLastConnection(t *testing.T) {
	for name, leave := range map[string]func(*leavingServer){
		"the server leaves":  func(s *leavingServer) { s.conn.GoAway() },
		"the session leaves": func(s *leavingServer) { go func() { _ = s.session.CloseWhenIdle() }() },
	} {
		t.Run(name+", streams", func(t *testing.T) { endsWithItsLast(t, false, leave) })
		t.Run(name+", packets", func(t *testing.T) { endsWithItsLast(t, true, leave) })
	}
}

func endsWithItsLast(t *testing.T, packets bool, leave func(*leavingServer)) {
	synctest.Test(t, func(t *testing.T) {
		s := newLeavingServer(t, packets, false)
		s.lasts("the server stays")
		leave(s)
		var conn net.Conn
		s.dial("destination:1", func(other tunnel.UnpairedEndpoint, err error) {
			if err != nil {
				t.Error(err)
				return
			}
			conn = tunnel.NewConn(other, "")
		})
		s.lasts("a destination is dialled")
		close(s.let)
		s.lasts("a connection is open")
		go func() { _, _ = io.WriteString(s.destination, "still there") }()
		if _, err := io.ReadFull(conn, make([]byte, len("still there"))); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		s.endsWithin(2 * drainPollInterval)
	})
}

// KON-053: it ends also when the server does not answer by its own end.
func TestSessionOfServerThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLeavingServer(t, true, true)
		s.conn.GoAway()
		s.endsWithin(drainTimeout + 2*drainPollInterval)
	})
}

// asks has the server ask for a connection, which comes once dials are let.
func (s *leavingServer) asks() <-chan net.Conn {
	answers := make(chan net.Conn, 1)
	s.dial("destination:1", func(other tunnel.UnpairedEndpoint, err error) {
		if err != nil {
			s.t.Error(err)
			close(answers)
			return
		}
		answers <- tunnel.NewConn(other, "")
	})
	synctest.Wait()
	return answers
}

// drains ends the agent, which has this session alone.
func (s *leavingServer) drains() (drained chan struct{}) {
	agent, drained := newServers(&Config{}, s.session.options.Metrics), make(chan struct{})
	agent.sessions["A"] = s.session
	go func() {
		defer close(drained)
		agent.drain()
	}()
	return drained
}

// KON-053: an agent that ends waits for destinations that are dialled, and until all that they have said has gone out.
func TestDrainIsNotTheEnd(t *testing.T) {
	for name, packets := range map[string]bool{"streams": false, "packets": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newLeavingServer(t, packets, false)
				answers := server.asks()
				drained := server.drains()
				<-time.After(3 * time.Second)
				close(server.let)
				conn := <-answers
				if conn == nil {
					return
				}
				said := make([]byte, 100<<10)
				go func() {
					shut := make(chan struct{})
					server.reads.shut.Store(&shut)
					_, _ = server.destination.Write(said)
					_ = server.destination.Close()
					<-time.After(3 * time.Second)
					close(shut)
				}()
				if n, err := io.Copy(io.Discard, conn); n != int64(len(said)) || err != nil {
					t.Errorf("%d bytes of %d: %v", n, len(said), err)
				}
				_ = conn.Close()
				<-time.After(2 * drainPollInterval)
				if synctest.Wait(); !isClosed(drained) {
					t.Error("the agent goes on without a connection")
				}
				server.session.Close()
			})
		})
	}
}

// KON-053: it waits as well for what destinations have yet to read of connections that are closed, also where the session that these came by
// has ended; but not for one that reads nothing.
func TestDrainWaitsForDestinations(t *testing.T) {
	for name, packets := range map[string]bool{"streams": false, "packets": true} {
		t.Run(name, func(t *testing.T) { drainWaits(t, packets, false, 3*time.Second) })
		t.Run(name+", no session", func(t *testing.T) { drainWaits(t, packets, true, 3*time.Second) })
		t.Run(name+", nothing is read", func(t *testing.T) { drainWaits(t, packets, false, time.Hour) })
	}
}

func drainWaits(t *testing.T, packets, gone bool, idle time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		const all = 50 << 10
		server := newLeavingServer(t, packets, false)
		close(server.let)
		conn := <-server.asks()
		if conn == nil {
			return
		}
		_, _ = conn.Write(make([]byte, all))
		_ = conn.Close()
		synctest.Wait() // until all is at the agent
		if gone {
			server.conn.Close(nil)
		}
		began := time.Now()
		drained := server.drains()
		<-time.After(min(idle, drainTimeout) - 1)
		if synctest.Wait(); isClosed(drained) {
			t.Error("the agent has ended before the destination has read anything")
		}
		if idle < drainTimeout {
			if n, err := io.Copy(io.Discard, server.destination); n != all || err != nil {
				t.Errorf("%d bytes of %d: %v", n, all, err)
			}
		}
		<-drained
		if took := time.Since(began); took > min(idle, drainTimeout)+drainPollInterval {
			t.Errorf("the agent has ended after %v", took)
		}
		server.session.Close()
		_ = server.destination.Close()
	})
}

// numbered is a tunnel server's end of a tunnel, that is told the numbers of connections.
type numbered struct {
	messages wire.PacketReader
	told     chan int64
}

func (n *numbered) Header(*h2.Stream, []hpack.HeaderField, bool) {}
func (n *numbered) Ended(*h2.Stream, error)                      {}

func (n *numbered) Data(_ *h2.Stream, b *h2.Buffer, _ bool) {
	_ = n.messages.Read(b, func(p wire.Packet, data *h2.Buffer) error {
		data.Release()
		if p.Type == wire.DialRsp {
			n.told <- p.ConnectID
		}
		return nil
	})
}

// KON-005: connections of an agent have different numbers, also when they go through different tunnels: the reference's server keeps them together.
func TestNumbersOfConnections(t *testing.T) {
	m := NewMetrics()
	ask := func() int64 {
		near, far := net.Pipe()
		n := &numbered{told: make(chan int64)}
		server := h2.NewServer(far, h2.Options{Accept: func(stream *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
			stream.Header(wire.Response(wire.ServerID, "A", wire.ServerCount, "1"), false)
			stream.Send(wire.Packet{Type: wire.DialReq, Protocol: "tcp", Address: "destination:1", Random: 1}.Message())
			return n
		}})
		go server.Run()
		t.Cleanup(func() { server.Close(nil) })
		s, err := newSession(t.Context(), near, "a:1", Options{ID: "agent", Metrics: m, Dial: func(context.Context, string, string) (net.Conn, error) {
			conn, _ := net.Pipe()
			return conn, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return <-n.told
	}
	if one, other := ask(), ask(); one == other {
		t.Errorf("two connections have the number %d", one)
	}
}
