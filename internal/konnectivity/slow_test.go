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
	onWay      = 32       // pieces that a slow link has on their way, of
	pieceOnWay = 16 << 10 // bytes at most
	smallest   = 64 << 10 // of the buffers that systems have for a socket, where they are not to matter
	bulk       = 16 << 20
	// mostOnWay is what may be between who sends and who reads, of a connection through a tunnel with a link that is slow: the windows of four
	// hops, and what systems and the link have; and keptOfPackets what a tunnel server keeps besides of one among packets.
	mostOnWay, keptOfPackets = 3 << 20, 4 << 20
)

// pace is how fast a link is: when what goes in comes out, and how much of it in a second, in each direction; 0: at once.
type pace struct {
	delay time.Duration
	rate  int // bytes a second

	mu   sync.Mutex
	free [2]time.Time // when each direction has nothing to pass on
}

func (p *pace) String() string {
	if p.rate > 0 {
		return fmt.Sprintf("%d KiB a second", p.rate>>10)
	}
	return p.delay.String() + " each way"
}

// takes says when so many bytes come out that go in now.
func (p *pace) takes(n int, up bool) (out time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	way := 0
	if up {
		way = 1
	}
	free := p.free[way]
	if now := time.Now(); free.Before(now) {
		free = now
	}
	if p.rate > 0 {
		free = free.Add(time.Duration(n) * time.Second / time.Duration(p.rate))
	}
	p.free[way] = free
	return free.Add(p.delay)
}

// relay is one direction of a connection over the link.
func (p *pace) relay(_ *link, to, from net.Conn, up bool) {
	type passing struct {
		data []byte
		out  time.Time
	}
	way := make(chan passing, onWay)
	go func() {
		defer close(way)
		for {
			data := make([]byte, pieceOnWay)
			n, err := from.Read(data)
			if err != nil {
				return
			}
			way <- passing{data[:n], p.takes(n, up)}
		}
	}()
	for next := range way {
		<-time.After(time.Until(next.out))
		if _, err := to.Write(next.data); err != nil {
			_ = from.Close()
		}
	}
	_ = to.(interface{ CloseWrite() error }).CloseWrite()
}

// narrow leaves the system little room for what is on its way to a socket, and from it.
func narrow(c net.Conn, err error) (net.Conn, error) {
	if s, ok := c.(interface {
		SetReadBuffer(int) error
		SetWriteBuffer(int) error
	}); ok {
		_, _ = s.SetReadBuffer(smallest), s.SetWriteBuffer(smallest)
	}
	return c, err
}

// slowed is a link of a certain pace.
func slowed(t *testing.T, p *pace, network, address, to string) (at string) {
	l := &link{Listener: listen(t, network, address), relay: p.relay, saw: ignored, to: func() (net.Conn, error) { return narrow(net.Dial(network, to)) }}
	go l.serve()
	t.Cleanup(l.cut)
	return l.Addr().String()
}

// KON-005 KON-044 KON-053: over links that take their time everything arrives, whole and in order, in both directions at once and in every mode;
// who has little to say is not behind who has much; and what is on its way is bounded.
func TestSlowLinks(t *testing.T) {
	for _, tr := range []transport{{server.ModeGRPC, true}, {server.ModeHTTPConnect, true}} {
		for _, packets := range []bool{false, true} {
			for _, at := range []string{"front", "agent"} {
				for _, p := range []*pace{{delay: 20 * time.Millisecond}, {delay: 50 * time.Millisecond}, {rate: 2 << 20}} {
					t.Run(fmt.Sprintf("%s, packets=%v, %s: %v", tr.mode, packets, at, p), func(t *testing.T) {
						t.Parallel()
						dial := slowTunnel(t, tr, packets, at, p)
						bothWays(t, dial)
						if p.rate > 0 {
							most := int64(mostOnWay)
							if packets {
								most += keptOfPackets
							}
							downBeside(t, dial, most)
							upBeside(t, dial, most)
						}
					})
				}
			}
		}
	}
}

// slowTunnel is one with a link that is slow.
func slowTunnel(t *testing.T, tr transport, packets bool, at string, slow *pace) dialer {
	p := newPKI(t)
	s := ourServer(t, p, tr)
	front, agents := s.front, s.agents
	if at == "front" {
		front = slowed(t, slow, "unix", t.TempDir()+"/slow", front)
	} else {
		agents = slowed(t, slow, "tcp", "127.0.0.1:0", agents)
	}
	if packets {
		to := agents
		l := agentLink(t, p, func() string { return to })
		l.packets = true
		go l.serve()
		t.Cleanup(l.cut)
		agents = l.Addr().String()
	}
	a, err := agent.Connect(t.Context(), agents, agent.Options{ID: "a", TLS: p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(), Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		return narrow((&net.Dialer{}).DialContext(ctx, network, address))
	}})
	must(t, err)
	t.Cleanup(a.Close)
	until(t, "the server has the agent", s.ready)
	connect := func(ctx context.Context) (net.Conn, error) {
		return narrow((&net.Dialer{}).DialContext(ctx, "unix", front))
	}
	if tr.mode == server.ModeHTTPConnect {
		return func(ctx context.Context, address string) (net.Conn, error) { return byConnect(ctx, connect, address) }
	}
	c := client.New(connect)
	t.Cleanup(c.Close)
	return func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
}

// bothWays sends different data in both directions at once.
func bothWays(t *testing.T, dial dialer) {
	up, down, got := noise(500_000), noise(500_000), make(chan []byte, 1)
	conn := open(t, dial, serve(t, func(c net.Conn) {
		go func() { _, _ = c.Write(down) }()
		all := make([]byte, len(up))
		n, _ := io.ReadFull(c, all)
		got <- all[:n]
	}))
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	go func() { _, _ = conn.Write(up) }()
	all := make([]byte, len(down))
	if n, err := io.ReadFull(conn, all); err != nil || !bytes.Equal(all, down) {
		t.Errorf("%d bytes of %d have come down, in order: %v; %v", n, len(down), bytes.Equal(all[:n], down[:n]), err)
	}
	select {
	case all = <-got:
		if !bytes.Equal(all, up) {
			t.Errorf("%d bytes of %d have come up, in order: %v", len(all), len(up), bytes.Equal(all, up[:len(all)]))
		}
	case <-time.After(patience):
		t.Error("not all has come up")
	}
}

// stream is data on its way, with much behind it.
type stream struct{ sent, got, most atomic.Int64 }

// send sends all of it, unless that fails.
func (s *stream) send(to net.Conn) {
	for piece := make([]byte, pieceOnWay); s.sent.Load() < bulk; {
		n, err := to.Write(piece)
		if s.sent.Add(int64(n)); err != nil {
			return
		}
	}
}

// read reads until it fails.
func (s *stream) read(from net.Conn) {
	for buf := make([]byte, pieceOnWay); ; {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		got := s.got.Add(int64(n))
		s.most.Store(max(s.most.Load(), s.sent.Load()-got))
	}
}

// overtakes has something go there and back while it is on its way.
func (s *stream) overtakes(t *testing.T, dial dialer, most int64) {
	t.Helper()
	until(t, "it is on its way", func() bool { return s.got.Load() > 0 })
	beside(t, dial)
	if got := s.got.Load(); got == bulk {
		t.Error("what is little has waited for all that is much")
	}
	until(t, "the windows have become as large as they do", func() bool { return s.got.Load() > bulk/8 })
	if s.most.Load() > most {
		t.Errorf("%d KiB were on their way, %d are the limit", s.most.Load()>>10, most>>10)
	}
	t.Logf("at most %d KiB were on their way", s.most.Load()>>10)
}

func downBeside(t *testing.T, dial dialer, most int64) {
	besideBulk(t, dial, most, (*stream).read, (*stream).send)
}

func upBeside(t *testing.T, dial dialer, most int64) {
	besideBulk(t, dial, most, (*stream).send, (*stream).read)
}

// besideBulk has a bulk stream be overtaken, of which each end does its part.
func besideBulk(t *testing.T, dial dialer, most int64, here, there func(*stream, net.Conn)) {
	var s stream
	conn := open(t, dial, serve(t, func(c net.Conn) {
		_, _ = narrow(c, nil)
		there(&s, c)
	}))
	defer conn.Close()
	go here(&s, conn)
	s.overtakes(t, dial, most)
}
