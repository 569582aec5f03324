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

// heapInUse returns the size of the heap in bytes, including garbage.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// frames is a Framer that can write invalid sequences of frames.
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
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.block.Bytes(), EndHeaders: true,
		EndStream: end})
}

// connectRaw connects to the agent port of a tunnel server and sends the HTTP/2 preface.
func connectRaw(t testing.TB, p *pki, agents string) *frames {
	conn, err := tls.Dial("tcp", agents, p.agent)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(t, err)
	f := newFrames(conn)
	must(t, f.WriteSettings())
	return f
}

// TestEmptyDataOfTunnelServer checks that the client handles a stream that the tunnel server ends with an
// empty DATA frame (KON-050).
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
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if _, err := c.DialContext(ctx, "tcp", "a:1"); err == nil ||
		!strings.Contains(err.Error(), "has ended the stream") {
		t.Error(err)
	}
}

// TestUnauthenticatedStreams checks that a client can open only a few streams, and uses little memory, before it
// has authenticated an agent (KON-045).
func TestUnauthenticatedStreams(t *testing.T) {
	p := newPKI(t)
	s := server.New(server.Options{Count: 1, KeepaliveTime: time.Minute, Strategies: []server.Strategy{server.Default},
		Logger:       slog.New(slog.DiscardHandler),
		Authenticate: func(context.Context, string) error { return errors.New("rejected") }})
	agents := listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = s.ServeAgents(tls.NewListener(agents, p.server)) }()
	before := heapInUse()
	f := connectRaw(t, p, agents.Addr().String())
	path := "/" + strings.Repeat("%", 3900)
	var err error
	for id := uint32(1); err == nil && id < 40_000; id += 2 {
		_ = f.conn.SetWriteDeadline(time.Now().Add(testTimeout))
		err = f.header(id, true, hpack.HeaderField{Name: ":path", Value: path})
	}
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the connection is not closed: %v", err)
	}
	if grown := heapInUse() - before; grown > 64<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
}

// TestAgentWithoutWindow checks that an agent which causes many replies, but gives the stream no window for
// them, is disconnected.
func TestAgentWithoutWindow(t *testing.T) {
	p := newPKI(t)
	s := startTrellisServer(t, p, transports[0])
	f := connectRaw(t, p, s.agents)
	must(t, f.header(1, false, wire.Request(wire.ConnectMethod, "x", true, wire.AgentID, "x")...))
	waitFor(t, "the server has the agent", s.ready)
	updates := make(chan uint32, 10_000)
	go func() { // reads, but sends no WINDOW_UPDATE for the stream
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if w, ok := frame.(*http2.WindowUpdateFrame); ok && w.StreamID == 1 {
				updates <- w.Increment
			}
		}
	}()
	const limit = 64 << 20
	piece := bytes.Repeat(wire.Packet{Type: wire.CloseReq, ConnectID: 1 << 40}.Message().Bytes(), 700)
	window, sent := 65535, 0
	for s.ready() && sent < limit {
		for window < len(piece) && s.ready() {
			select {
			case more := <-updates:
				window += int(more)
			case <-time.After(time.Millisecond): // a disconnected agent receives no WINDOW_UPDATE
			}
		}
		if window < len(piece) || f.WriteData(1, false, piece) != nil {
			break
		}
		window -= len(piece)
		sent += len(piece)
	}
	if sent >= limit {
		t.Errorf("the agent has sent %d MiB and is still connected", sent>>20)
	}
	waitFor(t, "the server has no agent", func() bool { return !s.ready() })
}

// packetAgent is an agent that uses only packets, like the reference agent.
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

// TestStallOnSharedStream checks that a stalled API server on a stream with several connections is closed with
// a reason, and that the other connections continue. All connections of such a stream share one window
// (KON-050).
func TestStallOnSharedStream(t *testing.T) {
	for name, agent := range map[string]func(testing.TB, *pki, string){
		"packets":         func(t testing.TB, p *pki, address string) { newPacketAgent(t, p, address) },
		"reference agent": startReferenceAgent,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPKI(t)
			s := startTrellisServer(t, p, transports[0])
			agent(t, p, s.agents)
			waitFor(t, "the server is ready", s.ready)
			dial := trellisClient(t, p, transports[0], s.frontend)
			var closed atomic.Bool
			stalled := mustDial(t, dial, serve(t, func(c net.Conn) {
				for piece := make([]byte, 32<<10); ; {
					if _, err := c.Write(piece); err != nil {
						_ = c.Close()
						closed.Store(true)
						return
					}
				}
			}))
			defer stalled.Close()
			checkNewConn(t, dial)
			waitFor(t, "the stalled connection is closed", closed.Load)
			_ = stalled.SetReadDeadline(time.Now().Add(testTimeout))
			if _, err := io.Copy(io.Discard, stalled); err == nil ||
				!strings.Contains(err.Error(), "the reader is too slow") {
				t.Errorf("the connection ends with %v", err)
			}
			checkNewConn(t, dial)
		})
	}
}

// TestStalledDestinationOnSharedStream checks that a stalled destination on a stream with several connections
// is closed with a reason and counted, and that the other connections continue (KON-050).
func TestStalledDestinationOnSharedStream(t *testing.T) {
	p := newPKI(t)
	s := startTrellisServer(t, p, transports[0])
	a := newPacketAgent(t, p, s.agents)
	waitFor(t, "the server is ready", s.ready)
	dial := trellisClient(t, p, transports[0], s.frontend)
	finished := make(chan struct{})
	defer close(finished)
	stalled := mustDial(t, dial, serve(t, func(c net.Conn) {
		<-finished
		_ = c.Close()
	}))
	defer stalled.Close()
	_ = stalled.SetWriteDeadline(time.Now().Add(testTimeout))
	var err error
	for piece := make([]byte, 32<<10); err == nil; {
		_, err = stalled.Write(piece)
	}
	if !strings.Contains(err.Error(), "the reader is too slow") || a.stalled.Load() != 1 {
		t.Errorf("the connection ends with %v, %d stalls counted, want 1", err, a.stalled.Load())
	}
	checkNewConn(t, dial)
}

// checkNewConn opens a connection and checks that it echoes.
func checkNewConn(t *testing.T, dial dialer) {
	t.Helper()
	conn := mustDial(t, dial, serve(t, func(c net.Conn) {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	}))
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// discardReceiver is a Receiver that discards everything.
type discardReceiver struct{}

func (discardReceiver) Header(*h2.Stream, []hpack.HeaderField, bool) {}
func (discardReceiver) Data(_ *h2.Stream, b *h2.Buffer, _ bool)      { b.Release() }
func (discardReceiver) Ended(*h2.Stream, error)                      {}

// TestSecondHeader checks that a second header within a connection aborts the connection on both sides.
func TestSecondHeader(t *testing.T) {
	p := newPKI(t)
	s := startTrellisServer(t, p, transports[0])
	conn, err := tls.Dial("tcp", s.agents, p.agent)
	must(t, err)
	requests := make(chan *h2.Stream, 1)
	accept := func(stream *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		stream.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
		requests <- stream
		return discardReceiver{}
	}
	c := h2.NewClient(conn, h2.Options{EnableTunnel: true, Accept: accept})
	go func() { _ = c.Run() }()
	defer c.Close(nil)
	_, err = c.Open(func(*h2.Stream) h2.Receiver { return discardReceiver{} },
		wire.Request(wire.ConnectMethod, "x", true, wire.AgentID, "x", wire.Tunnel, wire.TunnelByConnect), false)
	must(t, err)
	waitFor(t, "the server is ready", s.ready)
	out := mustDial(t, trellisClient(t, p, transports[0], s.frontend), "a:1")
	defer out.Close()
	(<-requests).Header([]hpack.HeaderField{{Name: "a", Value: "trailer"}}, true)
	_ = out.SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := out.Read(make([]byte, 1)); err == nil || err == io.EOF ||
		!strings.Contains(err.Error(), "unexpected header within") {
		t.Errorf("the connection ends with %v", err)
	}
	waitFor(t, "the stream ends", func() bool { return c.StreamCount() == 1 })
}

// TestFrontendDisconnectsDuringDial checks that the agent's dial is cancelled when the API server disconnects or
// cancels its dial, and that all resources are released (KON-044, KON-051).
func TestFrontendDisconnectsDuringDial(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.String(), func(t *testing.T) {
			p := newPKI(t)
			s := startTrellisServer(t, p, tr)
			dials, ended := make(chan string, 1), make(chan error, 1)
			a, err := agent.Connect(t.Context(), s.agents, agent.Options{ID: "x", TLS: p.agent,
				KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(),
				Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
					dials <- address
					<-ctx.Done()
					ended <- context.Cause(ctx)
					return nil, ctx.Err()
				}})
			must(t, err)
			defer a.Close()
			waitFor(t, "the server is ready", s.ready)
			noLeaks := leakCheck(t)
			for i := range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				c := client.New(tr.connect(p, s.frontend))
				dial := func(ctx context.Context) (net.Conn, error) { return c.DialContext(ctx, "tcp", "a:1") }
				if tr.mode == server.ModeHTTPConnect {
					dial = func(ctx context.Context) (net.Conn, error) {
						return dialConnect(ctx, tr.connect(p, s.frontend), "a:1")
					}
				}
				failed := make(chan error, 1)
				go func() {
					_, err := dial(ctx)
					failed <- err
				}()
				<-dials
				if i%2 == 0 && tr.mode == server.ModeGRPC {
					c.Close() // disconnects, instead of cancelling only the dial
				}
				cancel()
				if err := <-failed; err == nil {
					t.Error("the dial succeeds")
				}
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("the agent's dial ends with %v, want %v", err, context.Canceled)
				}
				c.Close()
			}
			waitFor(t, "the agent has no open connections", func() bool { return a.ConnCount() == 0 })
			noLeaks()
			shutDownPromptly(t, s.trellis)
		})
	}
}

// TestDialTimeoutRace checks dials that take about as long as DialTimeout. Each dial returns a connection or an
// error, and all resources are released (KON-054).
func TestDialTimeoutRace(t *testing.T) {
	p := newPKI(t)
	s := server.New(server.Options{ID: "s", Count: 1, DialTimeout: 2 * time.Millisecond,
		Strategies: []server.Strategy{server.Default}, Logger: slog.New(slog.DiscardHandler)})
	agents := listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = s.ServeAgents(tls.NewListener(agents, p.server)) }()
	frontends := listen(t, "unix", filepath.Join(t.TempDir(), "sock"))
	go func() { _ = s.ServeFrontends(frontends, server.ModeGRPC) }()
	var count atomic.Int64
	a, err := agent.Connect(t.Context(), agents.Addr().String(),
		agent.Options{ID: "x", TLS: p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(),
			Dial: func(_ context.Context, network, address string) (net.Conn, error) {
				// from 0 to about twice DialTimeout
				<-time.After(time.Duration(count.Add(1)%20) * 200 * time.Microsecond)
				return net.Dial(network, address)
			}})
	must(t, err)
	defer a.Close()
	waitFor(t, "the server is ready", s.Ready)
	var open atomic.Int64
	echo := serve(t, func(c net.Conn) {
		open.Add(1)
		defer open.Add(-1)
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
	dial := trellisClient(t, p, transports[0], frontends.Addr().String())
	if conn, err := dial(t.Context(), echo); err == nil { // opens the client's connection before leakCheck
		_ = conn.Close()
	}
	waitFor(t, "no connection is left", func() bool { return a.ConnCount() == 0 && open.Load() == 0 })
	connected, late := 0, 0
	noLeaks := leakCheck(t)
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
	t.Log(fmt.Sprint(connected, " connected, ", late, " timed out"))
	waitFor(t, "no connection is left", func() bool { return a.ConnCount() == 0 && open.Load() == 0 })
	noLeaks()
	shutDownPromptly(t, s)
}
