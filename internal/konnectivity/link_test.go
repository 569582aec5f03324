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

// link is an unencrypted relay that reports the packets it forwards.
type link struct {
	net.Listener
	dial  func() (net.Conn, error)
	relay func(l *link, to, from net.Conn, up bool) // relays one direction: up to the tunnel server, or down
	// If packets is true, the link removes h2.SettingTunnel, so that the agent uses packets like the reference
	// agent.
	packets  bool
	onPacket func(t wire.Type, up bool) // called after a packet was forwarded

	mu    sync.Mutex
	conns []net.Conn
}

func (l *link) serve() {
	serveOn(l, func(from net.Conn) {
		to, err := l.dial()
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

// cut resets all connections, as the system does when a process is killed.
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

// newFrontendLink returns a link to the frontend of a tunnel server, a Unix socket.
func newFrontendLink(t testing.TB, to func() (socket string), relay func(l *link, to, from net.Conn, up bool)) *link {
	return &link{Listener: listen(t, "unix", filepath.Join(t.TempDir(), "link")), relay: relay, onPacket: ignorePacket,
		dial: func() (net.Conn, error) { return net.Dial("unix", to()) }}
}

// newAgentLink returns a link from agents to a tunnel server. It terminates TLS.
func newAgentLink(t testing.TB, p *pki, to func() (address string)) *link {
	return &link{Listener: tls.NewListener(listen(t, "tcp", "127.0.0.1:0"), p.server), relay: relayFrames,
		onPacket: ignorePacket, dial: func() (net.Conn, error) {
			return tls.Dial("tcp", to(), p.agent)
		}}
}

func ignorePacket(wire.Type, bool) {}

// relayBytes relays one direction of HTTP CONNECT. It reports the request, the response, data and the end as
// packets.
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
				l.onPacket(last, up)
			}
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
		l.onPacket(next, up)
	}
}

// relayFrames relays one direction of HTTP/2.
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
		l.report(head, payload, up, streams)
	}
}

// withoutTunnel removes h2.SettingTunnel from a SETTINGS frame (RFC 9113, 6.5.1).
func withoutTunnel(payload []byte) (rest []byte) {
	for ; len(payload) >= 6; payload = payload[6:] {
		if id := http2.SettingID(payload[0])<<8 | http2.SettingID(payload[1]); id != h2.SettingTunnel {
			rest = append(rest, payload[:6]...)
		}
	}
	return rest
}

// report reports the packets of a frame. On a stream that a tunnel server has opened, it reports the packets
// that correspond to the frame.
func (l *link) report(head http2.FrameHeader, payload []byte, up bool, streams map[uint32]*wire.PacketReader) {
	serverStream := head.StreamID%2 == 0 && head.StreamID > 0
	switch {
	case serverStream && head.Type == http2.FrameHeaders:
		l.onPacket(choose(up, wire.DialRsp, wire.DialReq), up)
	case serverStream && head.Type == http2.FrameRSTStream && payload[3] == byte(http2.ErrCodeCancel):
		l.onPacket(wire.DialCls, up)
	case head.Type != http2.FrameData:
	case serverStream:
		if len(payload) > 0 {
			l.onPacket(wire.Data, up)
		}
		if head.Flags.Has(http2.FlagDataEndStream) {
			l.onPacket(choose(up, wire.CloseRsp, wire.CloseReq), up)
		}
	default:
		if streams[head.StreamID] == nil {
			streams[head.StreamID] = &wire.PacketReader{}
		}
		_ = streams[head.StreamID].Read(h2.BufferOf(payload), func(p wire.Packet, data *h2.Buffer) error {
			data.Release()
			l.onPacket(p.Type, up)
			return nil
		})
	}
}

func choose(first bool, a, b wire.Type) wire.Type {
	if first {
		return a
	}
	return b
}
