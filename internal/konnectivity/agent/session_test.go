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

// testServer is a tunnel server with one agent. The dials of the agent wait until the test allows them.
type testServer struct {
	tunnel.Packets
	t           *testing.T
	conn        *h2.Conn
	dial        tunnel.DialFunc
	session     *Session
	gate        *gatedConn
	allowDials  chan struct{} // closed when dials may continue
	destination net.Conn
	ended       chan struct{} // closed when the agent's session has ended
}

// newTestServer returns a testServer. It must be called in a synctest bubble. When the agent ends its Connect
// stream, the server ends it too, unless ignoresEnd is set.
func newTestServer(t *testing.T, packets, ignoresEnd bool) *testServer {
	s := &testServer{t: t, allowDials: make(chan struct{}), ended: make(chan struct{})}
	near, far := net.Pipe()
	s.gate = &gatedConn{Conn: far}
	s.conn = h2.NewServer(s.gate, h2.Options{Accept: func(stream *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		s.Shared = true
		s.OnEnd = func(error) {
			if !ignoresEnd {
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
		t.Errorf("packets %v: ServerIsTrellis returns %v", packets, s.session.ServerIsTrellis())
	}
	go func() {
		defer close(s.ended)
		_ = s.session.Wait()
	}()
	return s
}

// gatedConn is a connection whose Read can be blocked.
type gatedConn struct {
	net.Conn
	blocked atomic.Pointer[chan struct{}] // if not nil, Read blocks until the channel is closed
}

func (g *gatedConn) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if blocked := g.blocked.Load(); blocked != nil {
		<-*blocked
	}
	return n, err
}

func (s *testServer) connect(context.Context, string, string) (net.Conn, error) {
	<-s.allowDials
	near, far := net.Pipe()
	s.destination = near
	return far, nil
}

// checkOpen fails the test if the session ends within a minute.
func (s *testServer) checkOpen(state string) {
	s.t.Helper()
	<-time.After(time.Minute)
	if synctest.Wait(); isClosed(s.ended) {
		s.t.Fatalf("the session has ended while %s", state)
	}
}

func (s *testServer) checkEndsWithin(d time.Duration) {
	s.t.Helper()
	<-time.After(d)
	if synctest.Wait(); !isClosed(s.ended) {
		s.t.Errorf("the session is still open %v after its last connection", d)
	}
	s.session.Close()
}

// TestSessionEndsWithLastConnection checks that, after GOAWAY, a session stays open until its last connection or
// dial has ended, even if it was requested after GOAWAY. The same applies if the agent itself ends the session
// with CloseWhenIdle (KON-053, KON-055).
func TestSessionEndsWithLastConnection(t *testing.T) {
	for name, goAway := range map[string]func(*testServer){
		"GOAWAY":        func(s *testServer) { s.conn.GoAway() },
		"CloseWhenIdle": func(s *testServer) { go func() { _ = s.session.CloseWhenIdle() }() },
	} {
		t.Run(name+", streams", func(t *testing.T) { checkSessionEnd(t, false, goAway) })
		t.Run(name+", packets", func(t *testing.T) { checkSessionEnd(t, true, goAway) })
	}
}

func checkSessionEnd(t *testing.T, packets bool, goAway func(*testServer)) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, packets, false)
		s.checkOpen("the server is running")
		goAway(s)
		var conn net.Conn
		s.dial("destination:1", func(other tunnel.UnpairedEndpoint, err error) {
			if err != nil {
				t.Error(err)
				return
			}
			conn = tunnel.NewConn(other, "")
		})
		s.checkOpen("a destination is dialled")
		close(s.allowDials)
		s.checkOpen("a connection is open")
		go func() { _, _ = io.WriteString(s.destination, "data") }()
		if _, err := io.ReadFull(conn, make([]byte, len("data"))); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		s.checkEndsWithin(2 * drainPollInterval)
	})
}

// TestSessionEndsWithoutServer checks that a session after GOAWAY also ends if the server does not end its side
// (KON-053).
func TestSessionEndsWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, true, true)
		s.conn.GoAway()
		s.checkEndsWithin(drainTimeout + 2*drainPollInterval)
	})
}

// requestConn makes the server request a connection. The connection is sent to the returned channel when dials
// are allowed.
func (s *testServer) requestConn() <-chan net.Conn {
	result := make(chan net.Conn, 1)
	s.dial("destination:1", func(other tunnel.UnpairedEndpoint, err error) {
		if err != nil {
			s.t.Error(err)
			close(result)
			return
		}
		result <- tunnel.NewConn(other, "")
	})
	synctest.Wait()
	return result
}

// startDrain stops an agent whose only session is s.session.
func (s *testServer) startDrain() (drained chan struct{}) {
	agent, drained := newServers(&Config{}, s.session.options.Metrics), make(chan struct{})
	agent.sessions["A"] = s.session
	go func() {
		defer close(drained)
		agent.drain()
	}()
	return drained
}

// TestDrainCompletesConnections checks that a stopping agent completes pending dials, and sends all data of
// the destinations (KON-053).
func TestDrainCompletesConnections(t *testing.T) {
	for name, packets := range map[string]bool{"streams": false, "packets": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newTestServer(t, packets, false)
				result := server.requestConn()
				drained := server.startDrain()
				<-time.After(3 * time.Second)
				close(server.allowDials)
				conn := <-result
				if conn == nil {
					return
				}
				data := make([]byte, 100<<10)
				go func() {
					blocked := make(chan struct{})
					server.gate.blocked.Store(&blocked)
					_, _ = server.destination.Write(data)
					_ = server.destination.Close()
					<-time.After(3 * time.Second)
					close(blocked)
				}()
				if n, err := io.Copy(io.Discard, conn); n != int64(len(data)) || err != nil {
					t.Errorf("received %d of %d bytes, error %v", n, len(data), err)
				}
				_ = conn.Close()
				<-time.After(2 * drainPollInterval)
				if synctest.Wait(); !isClosed(drained) {
					t.Error("the agent has not stopped after its last connection")
				}
				server.session.Close()
			})
		})
	}
}

// TestDrainWaitsForDestinations checks that a stopping agent also waits until destinations have read the data
// of closed connections, even if the session has ended. It does not wait longer than drainTimeout for a
// destination that reads nothing (KON-053).
func TestDrainWaitsForDestinations(t *testing.T) {
	for name, packets := range map[string]bool{"streams": false, "packets": true} {
		t.Run(name, func(t *testing.T) { checkDrainWaits(t, packets, false, 3*time.Second) })
		t.Run(name+", no session", func(t *testing.T) { checkDrainWaits(t, packets, true, 3*time.Second) })
		t.Run(name+", unread", func(t *testing.T) { checkDrainWaits(t, packets, false, time.Hour) })
	}
}

func checkDrainWaits(t *testing.T, packets, sessionLost bool, readDelay time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		const all = 50 << 10
		server := newTestServer(t, packets, false)
		close(server.allowDials)
		conn := <-server.requestConn()
		if conn == nil {
			return
		}
		_, _ = conn.Write(make([]byte, all))
		_ = conn.Close()
		synctest.Wait() // wait until all data has arrived at the agent
		if sessionLost {
			server.conn.Close(nil)
		}
		began := time.Now()
		drained := server.startDrain()
		<-time.After(min(readDelay, drainTimeout) - 1)
		if synctest.Wait(); isClosed(drained) {
			t.Error("the agent has stopped before the destination has read")
		}
		if readDelay < drainTimeout {
			if n, err := io.Copy(io.Discard, server.destination); n != all || err != nil {
				t.Errorf("received %d of %d bytes, error %v", n, all, err)
			}
		}
		<-drained
		if elapsed := time.Since(began); elapsed > min(readDelay, drainTimeout)+drainPollInterval {
			t.Errorf("the agent has stopped only after %v", elapsed)
		}
		server.session.Close()
		_ = server.destination.Close()
	})
}

// connIDReceiver is the Receiver of a Connect stream. It sends the IDs of opened connections to ids.
type connIDReceiver struct {
	reader wire.PacketReader
	ids    chan int64
}

func (n *connIDReceiver) Header(*h2.Stream, []hpack.HeaderField, bool) {}
func (n *connIDReceiver) Ended(*h2.Stream, error)                      {}

func (n *connIDReceiver) Data(_ *h2.Stream, b *h2.Buffer, _ bool) {
	_ = n.reader.Read(b, func(p wire.Packet, data *h2.Buffer) error {
		data.Release()
		if p.Type == wire.DialRsp {
			n.ids <- p.ConnectID
		}
		return nil
	})
}

// TestConnectionIDs checks that the connection IDs of an agent differ across its sessions. A reference server uses
// one map of connection IDs for all sessions of an agent (KON-005).
func TestConnectionIDs(t *testing.T) {
	m := NewMetrics()
	openConn := func() int64 {
		near, far := net.Pipe()
		n := &connIDReceiver{ids: make(chan int64)}
		server := h2.NewServer(far, h2.Options{Accept: func(stream *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
			stream.Header(wire.Response(wire.ServerID, "A", wire.ServerCount, "1"), false)
			stream.Send(wire.Packet{Type: wire.DialReq, Protocol: "tcp", Address: "destination:1", Random: 1}.Message())
			return n
		}})
		go server.Run()
		t.Cleanup(func() { server.Close(nil) })
		s, err := newSession(t.Context(), near, "a:1", Options{ID: "agent", Metrics: m,
			Dial: func(context.Context, string, string) (net.Conn, error) {
				conn, _ := net.Pipe()
				return conn, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return <-n.ids
	}
	if first, second := openConn(), openConn(); first == second {
		t.Errorf("two connections have the ID %d", first)
	}
}
