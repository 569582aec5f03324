package konnectivity_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// heap is how many bytes are taken, garbage included.
func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// frames writes frames of HTTP/2 that no proper peer writes.
type frames struct {
	*http2.Framer
	conn    net.Conn
	block   bytes.Buffer
	encoder *hpack.Encoder
}

func newFrames(conn net.Conn) *frames {
	f := &frames{Framer: http2.NewFramer(conn, conn), conn: conn}
	f.encoder = hpack.NewEncoder(&f.block)
	return f
}

func (f *frames) header(stream uint32, end bool, fields ...hpack.HeaderField) error {
	f.block.Reset()
	for _, field := range fields {
		_ = f.encoder.WriteField(field)
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.block.Bytes(), EndHeaders: true, EndStream: end})
}

// connected says the first thing of a client to a tunnel server, at its port for agents.
func connected(t testing.TB, p *pki, agents string) *frames {
	conn, err := tls.Dial("tcp", agents, p.agent)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(t, err)
	f := newFrames(conn)
	must(t, f.WriteSettings())
	return f
}

// KON-050: a tunnel server that ends a stream with an empty DATA frame does no harm to the API server.
func TestEmptyDataOfTunnelServer(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		_, _ = io.ReadFull(far, make([]byte, len(http2.ClientPreface)))
		f := newFrames(far)
		_ = f.WriteSettings()
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if frame.Header().Type == http2.FrameHeaders {
				_ = f.header(1, false, hpack.HeaderField{Name: ":status", Value: "200"})
				_ = f.WriteData(1, false, nil)
				_ = f.WriteData(1, true, nil)
			}
		}
	}()
	c := client.New(func(context.Context) (net.Conn, error) { return near, nil })
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := c.DialContext(ctx, "tcp", "a:1"); err == nil || !strings.Contains(err.Error(), "has ended the stream") {
		t.Error(err)
	}
}

// KON-045: who has not been let in as an agent opens no more than a few streams, and costs little memory.
func TestStrangersOpenFewStreams(t *testing.T) {
	p := newPKI(t)
	s := server.New(server.Options{Count: 1, KeepaliveTime: time.Minute, Strategies: []server.Strategy{server.Default},
		Logger: slog.New(slog.DiscardHandler), Authenticate: func(context.Context, string) error { return errors.New("nobody") }})
	agents := listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = s.ServeAgents(tls.NewListener(agents, p.server)) }()
	before := heap()
	f := connected(t, p, agents.Addr().String())
	path := "/" + strings.Repeat("%", 3900)
	var err error
	for id := uint32(1); err == nil && id < 40_000; id += 2 {
		_ = f.conn.SetWriteDeadline(time.Now().Add(patience))
		err = f.header(id, true, hpack.HeaderField{Name: ":path", Value: path})
	}
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it may go on for ever: %v", err)
	}
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
}

// An agent that asks for ever more replies and takes none is sent away.
func TestAgentThatTakesNoReplies(t *testing.T) {
	p := newPKI(t)
	s := ourServer(t, p, transports[0])
	f := connected(t, p, s.agents)
	must(t, f.header(1, false, wire.Request(wire.ConnectMethod, "x", true, wire.AgentID, "x")...))
	until(t, "the server has the agent", s.ready)
	grants := make(chan uint32, 10_000)
	go func() { // reads, but gives the stream no window
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if w, ok := frame.(*http2.WindowUpdateFrame); ok && w.StreamID == 1 {
				grants <- w.Increment
			}
		}
	}()
	const most = 64 << 20
	piece := bytes.Repeat(wire.Packet{Type: wire.CloseReq, ConnectID: 1 << 40}.Message().Bytes(), 700)
	left, sent := 65535, 0
	for s.ready() && sent < most {
		for left < len(piece) && s.ready() {
			select {
			case more := <-grants:
				left += int(more)
			case <-time.After(time.Millisecond): // no more are given to one that is not ready
			}
		}
		if left < len(piece) || f.WriteData(1, false, piece) != nil {
			break
		}
		left -= len(piece)
		sent += len(piece)
	}
	if sent >= most {
		t.Errorf("it has sent %d MiB and is an agent yet", sent>>20)
	}
	until(t, "the server has no agent", func() bool { return !s.ready() })
}

// packetAgent speaks packets alone, as the reference's, over this repository's HTTP/2.
type packetAgent struct {
	tunnel.Packets
	stalled atomic.Int64
}

func newPacketAgent(t testing.TB, p *pki, address string) *packetAgent {
	conn, err := tls.Dial("tcp", address, p.agent)
	must(t, err)
	c := h2.NewClient(conn, h2.Options{})
	a := &packetAgent{}
	a.Shared, a.OnStall = true, func() { a.stalled.Add(1) }
	a.Dialer = func(address string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
		go func() {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				answered(nil, err)
				return
			}
			answered(tunnel.NewSocket(conn, func() {}), nil)
		}()
		return func() {}
	}
	go func() { _ = c.Run() }()
	t.Cleanup(func() { c.Close(nil) })
	_, err = c.Open(func(s *h2.Stream) h2.Receiver {
		a.Bind(s)
		return a
	}, wire.Request(wire.ConnectMethod, address, true, wire.AgentID, "packets"), false)
	must(t, err)
	return a
}

// KON-050: among packets, where all connections have one window, who reads nothing of megabytes that wait is closed after a while, with a
// reason; and then the others go on. Here it is the API server that does not read.
func TestStallAmongPackets(t *testing.T) {
	for name, agent := range map[string]func(testing.TB, *pki, string){
		"packets":               func(t testing.TB, p *pki, address string) { newPacketAgent(t, p, address) },
		"the reference's agent": referenceAgent,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPKI(t)
			s := ourServer(t, p, transports[0])
			agent(t, p, s.agents)
			until(t, "the server is ready", s.ready)
			dial := ourFront(t, p, transports[0], s.front)
			var closed atomic.Bool
			stalled := open(t, dial, serve(t, func(c net.Conn) {
				for piece := make([]byte, 32<<10); ; {
					if _, err := c.Write(piece); err != nil {
						_ = c.Close()
						closed.Store(true)
						return
					}
				}
			}))
			defer stalled.Close()
			beside(t, dial)
			until(t, "it is closed, as nothing is read", closed.Load)
			_ = stalled.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, stalled); err == nil || !strings.Contains(err.Error(), "too little has been read") {
				t.Errorf("it ends with %v", err)
			}
			beside(t, dial)
		})
	}
}

// KON-050: the same where it is the destination that does not read.
func TestDestinationThatStallsAmongPackets(t *testing.T) {
	p := newPKI(t)
	s := ourServer(t, p, transports[0])
	a := newPacketAgent(t, p, s.agents)
	until(t, "the server is ready", s.ready)
	dial := ourFront(t, p, transports[0], s.front)
	over := make(chan struct{})
	defer close(over)
	stalled := open(t, dial, serve(t, func(c net.Conn) {
		<-over
		_ = c.Close()
	}))
	defer stalled.Close()
	_ = stalled.SetWriteDeadline(time.Now().Add(patience))
	var err error
	for piece := make([]byte, 32<<10); err == nil; {
		_, err = stalled.Write(piece)
	}
	if !strings.Contains(err.Error(), "too little has been read") || a.stalled.Load() != 1 {
		t.Errorf("it ends with %v, %d are counted", err, a.stalled.Load())
	}
	beside(t, dial)
}

// beside has something go there and back.
func beside(t *testing.T, dial dialer) {
	t.Helper()
	conn := open(t, dial, serve(t, func(c net.Conn) {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	}))
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// ignores is a Receiver that wants nothing.
type ignores struct{}

func (ignores) Header(*h2.Stream, []hpack.HeaderField, bool) {}
func (ignores) Data(_ *h2.Stream, b *h2.Buffer, _ bool)      { b.Release() }
func (ignores) Ended(*h2.Stream, error)                      {}

// A second header in the midst of a connection breaks that off, at both ends.
func TestSecondHeader(t *testing.T) {
	p := newPKI(t)
	s := ourServer(t, p, transports[0])
	conn, err := tls.Dial("tcp", s.agents, p.agent)
	must(t, err)
	asked := make(chan *h2.Stream, 1)
	c := h2.NewClient(conn, h2.Options{EnableTunnel: true, Accept: func(stream *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		stream.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
		asked <- stream
		return ignores{}
	}})
	go func() { _ = c.Run() }()
	defer c.Close(nil)
	_, err = c.Open(func(*h2.Stream) h2.Receiver { return ignores{} }, wire.Request(wire.ConnectMethod, "x", true, wire.AgentID, "x", wire.Tunnel, wire.TunnelByConnect), false)
	must(t, err)
	until(t, "the server is ready", s.ready)
	out := open(t, ourFront(t, p, transports[0], s.front), "a:1")
	defer out.Close()
	(<-asked).Header([]hpack.HeaderField{{Name: "a", Value: "trailer"}}, true)
	_ = out.SetReadDeadline(time.Now().Add(patience))
	if _, err := out.Read(make([]byte, 1)); err == nil || err == io.EOF || !strings.Contains(err.Error(), "header in the midst") {
		t.Errorf("it ends with %v", err)
	}
	until(t, "its stream ends", func() bool { return c.StreamCount() == 1 })
}

// KON-044 KON-051: an API server that goes away while it waits for a connection has the dial be given up at the agent, and nothing is left.
func TestFrontThatGoesAwayDuringTheDial(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.String(), func(t *testing.T) {
			p := newPKI(t)
			s := ourServer(t, p, tr)
			dials, over := make(chan string, 1), make(chan error, 1)
			a, err := agent.Connect(t.Context(), s.agents, agent.Options{ID: "x", TLS: p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(),
				Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
					dials <- address
					<-ctx.Done()
					over <- context.Cause(ctx)
					return nil, ctx.Err()
				}})
			must(t, err)
			defer a.Close()
			until(t, "the server is ready", s.ready)
			rest := atRest(t)
			for i := range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				c := client.New(tr.connect(p, s.front))
				dial := func(ctx context.Context) (net.Conn, error) { return c.DialContext(ctx, "tcp", "a:1") }
				if tr.mode == server.ModeHTTPConnect {
					dial = func(ctx context.Context) (net.Conn, error) { return byConnect(ctx, tr.connect(p, s.front), "a:1") }
				}
				failed := make(chan error, 1)
				go func() {
					_, err := dial(ctx)
					failed <- err
				}()
				<-dials
				if i%2 == 0 && tr.mode == server.ModeGRPC {
					c.Close() // and not the dial alone
				}
				cancel()
				if err := <-failed; err == nil {
					t.Error("connected to nobody")
				}
				if err := <-over; !errors.Is(err, context.Canceled) {
					t.Errorf("the agent's dial ends with %v", err)
				}
				c.Close()
			}
			until(t, "the agent has nothing open", func() bool { return a.ConnCount() == 0 })
			rest()
			atOnce(t, s.ours)
		})
	}
}

// KON-054: a dial that takes about as long as it may either has a connection or an error, and nothing is left of either.
func TestDialTimeoutBesideTheAnswer(t *testing.T) {
	p := newPKI(t)
	s := server.New(server.Options{ID: "s", Count: 1, DialTimeout: 2 * time.Millisecond, Strategies: []server.Strategy{server.Default}, Logger: slog.New(slog.DiscardHandler)})
	agents := listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = s.ServeAgents(tls.NewListener(agents, p.server)) }()
	fronts := listen(t, "unix", filepath.Join(t.TempDir(), "front"))
	go func() { _ = s.ServeFrontends(fronts, server.ModeGRPC) }()
	var turn atomic.Int64
	a, err := agent.Connect(t.Context(), agents.Addr().String(), agent.Options{ID: "x", TLS: p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(),
		Dial: func(_ context.Context, network, address string) (net.Conn, error) {
			<-time.After(time.Duration(turn.Add(1)%20) * 200 * time.Microsecond) // from none to twice the limit
			return net.Dial(network, address)
		}})
	must(t, err)
	defer a.Close()
	until(t, "the server is ready", s.Ready)
	var left atomic.Int64
	echo := serve(t, func(c net.Conn) {
		left.Add(1)
		defer left.Add(-1)
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
	dial := ourFront(t, p, transports[0], fronts.Addr().String())
	if conn, err := dial(t.Context(), echo); err == nil { // what is opened once is open
		_ = conn.Close()
	}
	until(t, "nothing is left", func() bool { return a.ConnCount() == 0 && left.Load() == 0 })
	connected, late := 0, 0
	rest := atRest(t)
	for range 200 {
		conn, err := dial(t.Context(), echo)
		switch {
		case err == nil:
			connected++
			_ = conn.Close()
		case strings.Contains(err.Error(), "timed out"):
			late++
		default:
			t.Error(err)
		}
	}
	t.Log(fmt.Sprint(connected, " connected, ", late, " late"))
	until(t, "nothing is left", func() bool { return a.ConnCount() == 0 && left.Load() == 0 })
	rest()
	atOnce(t, s)
}
