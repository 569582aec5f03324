package konnectivity_test

import (
	"crypto/tls"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/net/http2"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// link is a relay in the clear that knows the packets it passes on.
type link struct {
	net.Listener
	to      func() (net.Conn, error)
	relay   func(l *link, to, from net.Conn, up bool) // one direction; up: to the tunnel server
	packets bool                                      // it hides that the agent can have a stream for each connection, as the reference's cannot
	saw     func(t wire.Type, up bool)                // is told after a packet has been passed on

	mu    sync.Mutex
	conns []net.Conn
}

func (l *link) serve() {
	serveOn(l, func(from net.Conn) {
		to, err := l.to()
		if err != nil {
			_ = from.Close()
			return
		}
		l.mu.Lock()
		l.conns = append(l.conns, from, to)
		l.mu.Unlock()
		var both sync.WaitGroup
		both.Go(func() { l.relay(l, to, from, true) })
		both.Go(func() { l.relay(l, from, to, false) })
		both.Wait()
		_, _ = from.Close(), to.Close()
	})
}

// cut breaks all connections off, as a system does of a process that has been killed.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		if secure, ok := c.(*tls.Conn); ok {
			c = secure.NetConn()
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
	l.conns = nil
}

// frontLink leads to the front of a tunnel server, a Unix socket.
func frontLink(t testing.TB, to func() (socket string), relay func(l *link, to, from net.Conn, up bool)) *link {
	return &link{Listener: listen(t, "unix", filepath.Join(t.TempDir(), "link")), relay: relay, saw: ignored, to: func() (net.Conn, error) { return net.Dial("unix", to()) }}
}

// agentLink leads agents to a tunnel server.
func agentLink(t testing.TB, p *pki, to func() (address string)) *link {
	return &link{Listener: tls.NewListener(listen(t, "tcp", "127.0.0.1:0"), p.server), relay: relayFrames, saw: ignored, to: func() (net.Conn, error) {
		return tls.Dial("tcp", to(), p.agent)
	}}
}

func ignored(wire.Type, bool) {}

// relayBytes is of a front that asks by HTTP CONNECT: a request and its answer, and what follows, are like packets.
func relayBytes(l *link, to, from net.Conn, up bool) {
	first, last := wire.DialRsp, wire.CloseRsp
	if up {
		first, last = wire.DialReq, wire.CloseReq
	}
	next := first
	for buf := make([]byte, 32<<10); ; next = wire.Data {
		n, err := from.Read(buf)
		if err != nil {
			_ = to.(*net.UnixConn).CloseWrite()
			if err == io.EOF {
				l.saw(last, up)
			}
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
		l.saw(next, up)
	}
}

// relayFrames is of HTTP/2.
func relayFrames(l *link, to, from net.Conn, up bool) {
	defer func() { _, _ = to.Close(), from.Close() }()
	if up {
		if _, err := io.CopyN(to, from, int64(len(http2.ClientPreface))); err != nil {
			return
		}
	}
	out, streams := http2.NewFramer(to, nil), map[uint32]*wire.PacketReader{}
	for {
		head, err := http2.ReadFrameHeader(from)
		if err != nil {
			return
		}
		payload := make([]byte, head.Length)
		if _, err := io.ReadFull(from, payload); err != nil {
			return
		}
		if head.Type == http2.FrameSettings && l.packets {
			payload = withoutTunnel(payload)
		}
		if out.WriteRawFrame(head.Type, head.Flags, head.StreamID, payload) != nil {
			return
		}
		l.tell(head, payload, up, streams)
	}
}

// withoutTunnel takes a setting away (RFC 9113, 6.5.1).
func withoutTunnel(payload []byte) (rest []byte) {
	for ; len(payload) >= 6; payload = payload[6:] {
		if id := http2.SettingID(payload[0])<<8 | http2.SettingID(payload[1]); id != h2.SettingTunnel {
			rest = append(rest, payload[:6]...)
		}
	}
	return rest
}

// tell says what a frame has been: the packets in it or, of a stream that a tunnel server has opened, what is there in their place.
func (l *link) tell(head http2.FrameHeader, payload []byte, up bool, streams map[uint32]*wire.PacketReader) {
	ofServer := head.StreamID%2 == 0 && head.StreamID > 0
	switch {
	case ofServer && head.Type == http2.FrameHeaders:
		l.saw(pick(up, wire.DialRsp, wire.DialReq), up)
	case ofServer && head.Type == http2.FrameRSTStream && payload[3] == byte(http2.ErrCodeCancel):
		l.saw(wire.DialCls, up)
	case head.Type != http2.FrameData:
	case ofServer:
		if len(payload) > 0 {
			l.saw(wire.Data, up)
		}
		if head.Flags.Has(http2.FlagDataEndStream) {
			l.saw(pick(up, wire.CloseRsp, wire.CloseReq), up)
		}
	default:
		if streams[head.StreamID] == nil {
			streams[head.StreamID] = &wire.PacketReader{}
		}
		_ = streams[head.StreamID].Read(h2.BufferOf(payload), func(p wire.Packet, data *h2.Buffer) error {
			data.Release()
			l.saw(p.Type, up)
			return nil
		})
	}
}

func pick(first bool, a, b wire.Type) wire.Type {
	if first {
		return a
	}
	return b
}
