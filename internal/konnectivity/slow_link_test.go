package konnectivity_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

const (
	queuedPieces = 32       // maximum number of pieces that a slow link holds
	pieceBytes   = 16 << 10 // maximum size of a piece
	socketBuffer = 64 << 10 // size of socket buffers, small so that they do not affect the result
	bulkBytes    = 16 << 20
	// maxInFlight is the maximum amount of data of a connection between its two ends, through a tunnel with a slow
	// link: the windows of four hops, socket buffers and the link. maxBuffered is the additional data that a tunnel
	// server buffers for a connection of a shared stream.
	maxInFlight, maxBuffered = 3 << 20, 4 << 20
)

// linkSpeed is the delay and the rate of a link, in each direction. 0 means no delay or no limit.
type linkSpeed struct {
	delay time.Duration
	rate  int // bytes a second

	mu   sync.Mutex
	free [2]time.Time // when each direction becomes idle
}

func (p *linkSpeed) String() string {
	if p.rate > 0 {
		return fmt.Sprintf("%d KiB a second", p.rate>>10)
	}
	return p.delay.String() + " each way"
}

// delivery returns the time at which n bytes arrive if they are sent now.
func (p *linkSpeed) delivery(n int, up bool) (arrival time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	direction := 0
	if up {
		direction = 1
	}
	free := p.free[direction]
	if now := time.Now(); free.Before(now) {
		free = now
	}
	if p.rate > 0 {
		free = free.Add(time.Duration(n) * time.Second / time.Duration(p.rate))
	}
	p.free[direction] = free
	return free.Add(p.delay)
}

// relay relays one direction of a connection.
func (p *linkSpeed) relay(_ *link, to, from net.Conn, up bool) {
	type delayed struct {
		data    []byte
		arrival time.Time
	}
	queue := make(chan delayed, queuedPieces)
	go func() {
		defer close(queue)
		for {
			data := make([]byte, pieceBytes)
			n, err := from.Read(data)
			if err != nil {
				return
			}
			queue <- delayed{data[:n], p.delivery(n, up)}
		}
	}()
	for next := range queue {
		<-time.After(time.Until(next.arrival))
		if _, err := to.Write(next.data); err != nil {
			_ = from.Close()
		}
	}
	_ = to.(interface{ CloseWrite() error }).CloseWrite()
}

// shrinkBuffers reduces the socket buffers of a connection.
func shrinkBuffers(c net.Conn, err error) (net.Conn, error) {
	if s, ok := c.(interface {
		SetReadBuffer(int) error
		SetWriteBuffer(int) error
	}); ok {
		_, _ = s.SetReadBuffer(socketBuffer), s.SetWriteBuffer(socketBuffer)
	}
	return c, err
}

// startSlowLink starts a link with the given speed.
func startSlowLink(t *testing.T, p *linkSpeed, network, address, to string) (linkAddress string) {
	l := &link{Listener: listen(t, network, address), relay: p.relay, onPacket: ignorePacket,
		dial: func() (net.Conn, error) { return shrinkBuffers(net.Dial(network, to)) }}
	go l.serve()
	t.Cleanup(l.cut)
	return l.Addr().String()
}

// TestSlowLinks checks that all data arrives in order over slow links, in both directions at the same time and
// in every mode. A small request must not wait for a bulk stream, and the data in flight is limited (KON-005,
// KON-044, KON-053).
func TestSlowLinks(t *testing.T) {
	for _, tr := range []transport{{server.ModeGRPC, true}, {server.ModeHTTPConnect, true}} {
		for _, packets := range []bool{false, true} {
			for _, at := range []string{"frontend", "agent"} {
				for _, p := range []*linkSpeed{{delay: 20 * time.Millisecond}, {delay: 50 * time.Millisecond},
					{rate: 2 << 20}} {
					t.Run(fmt.Sprintf("%s, packets=%v, %s: %v", tr.mode, packets, at, p), func(t *testing.T) {
						t.Parallel()
						dial := slowTunnel(t, tr, packets, at, p)
						checkBothDirections(t, dial)
						if p.rate > 0 {
							limit := int64(maxInFlight)
							if packets {
								limit += maxBuffered
							}
							checkBulkDown(t, dial, limit)
							checkBulkUp(t, dial, limit)
						}
					})
				}
			}
		}
	}
}

// slowTunnel returns the dialer of a tunnel with one slow link.
func slowTunnel(t *testing.T, tr transport, packets bool, at string, slow *linkSpeed) dialer {
	p := newPKI(t)
	s := startTrellisServer(t, p, tr)
	frontend, agents := s.frontend, s.agents
	if at == "frontend" {
		frontend = startSlowLink(t, slow, "unix", t.TempDir()+"/slow", frontend)
	} else {
		agents = startSlowLink(t, slow, "tcp", "127.0.0.1:0", agents)
	}
	if packets {
		to := agents
		l := newAgentLink(t, p, func() string { return to })
		l.packets = true
		go l.serve()
		t.Cleanup(l.cut)
		agents = l.Addr().String()
	}
	a, err := agent.Connect(t.Context(), agents, agent.Options{ID: "a", TLS: p.agent, KeepaliveTime: time.Minute,
		Metrics: agent.NewMetrics(), Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return shrinkBuffers((&net.Dialer{}).DialContext(ctx, network, address))
		}})
	must(t, err)
	t.Cleanup(a.Close)
	waitFor(t, "the server has the agent", s.ready)
	connect := func(ctx context.Context) (net.Conn, error) {
		return shrinkBuffers((&net.Dialer{}).DialContext(ctx, "unix", frontend))
	}
	if tr.mode == server.ModeHTTPConnect {
		return func(ctx context.Context, address string) (net.Conn, error) { return dialConnect(ctx, connect, address) }
	}
	c := client.New(connect)
	t.Cleanup(c.Close)
	return func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
}

// checkBothDirections sends different data in both directions at the same time.
func checkBothDirections(t *testing.T, dial dialer) {
	up, down, got := randomBytes(500_000), randomBytes(500_000), make(chan []byte, 1)
	conn := mustDial(t, dial, serve(t, func(c net.Conn) {
		go func() { _, _ = c.Write(down) }()
		all := make([]byte, len(up))
		n, _ := io.ReadFull(c, all)
		got <- all[:n]
	}))
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	go func() { _, _ = conn.Write(up) }()
	all := make([]byte, len(down))
	if n, err := io.ReadFull(conn, all); err != nil || !bytes.Equal(all, down) {
		t.Errorf("client received %d of %d bytes, in order %v, error %v", n, len(down), bytes.Equal(all[:n], down[:n]),
			err)
	}
	select {
	case all = <-got:
		if !bytes.Equal(all, up) {
			t.Errorf("destination received %d of %d bytes, in order %v", len(all), len(up),
				bytes.Equal(all, up[:len(all)]))
		}
	case <-time.After(testTimeout):
		t.Error("the destination has not received all data")
	}
}

// bulkStream is a large transfer.
type bulkStream struct{ sent, received, peak atomic.Int64 }

// send sends bulkBytes bytes. It stops at the first error.
func (s *bulkStream) send(to net.Conn) {
	for piece := make([]byte, pieceBytes); s.sent.Load() < bulkBytes; {
		n, err := to.Write(piece)
		if s.sent.Add(int64(n)); err != nil {
			return
		}
	}
}

// read reads until an error.
func (s *bulkStream) read(from net.Conn) {
	for buf := make([]byte, pieceBytes); ; {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		received := s.received.Add(int64(n))
		s.peak.Store(max(s.peak.Load(), s.sent.Load()-received))
	}
}

// checkSmallRequest checks an echo on a new connection during the transfer, and the maximum of the data in
// flight.
func (s *bulkStream) checkSmallRequest(t *testing.T, dial dialer, limit int64) {
	t.Helper()
	waitFor(t, "the transfer has started", func() bool { return s.received.Load() > 0 })
	checkNewConn(t, dial)
	if s.received.Load() == bulkBytes {
		t.Error("the small request has waited for the whole transfer")
	}
	waitFor(t, "the windows have reached their final size", func() bool { return s.received.Load() > bulkBytes/8 })
	if s.peak.Load() > limit {
		t.Errorf("%d KiB were in flight, limit %d KiB", s.peak.Load()>>10, limit>>10)
	}
	t.Logf("at most %d KiB were in flight", s.peak.Load()>>10)
}

func checkBulkDown(t *testing.T, dial dialer, limit int64) {
	checkBulk(t, dial, limit, (*bulkStream).read, (*bulkStream).send)
}

func checkBulkUp(t *testing.T, dial dialer, limit int64) {
	checkBulk(t, dial, limit, (*bulkStream).send, (*bulkStream).read)
}

// checkBulk runs a transfer between the client, which calls the function here, and a destination, which calls the
// function there. During the transfer, it checks a small request.
func checkBulk(t *testing.T, dial dialer, limit int64, here, there func(*bulkStream, net.Conn)) {
	var s bulkStream
	conn := mustDial(t, dial, serve(t, func(c net.Conn) {
		_, _ = shrinkBuffers(c, nil)
		there(&s, c)
	}))
	defer conn.Close()
	go here(&s, conn)
	s.checkSmallRequest(t, dial, limit)
}
