package tunnel

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"

	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// maxControlBytes is the maximum number of bytes of queued packets other than DATA.
const maxControlBytes = 1 << 20

var errFlood = errors.New("other end of the tunnel requests replies but does not read them")

// controlBytes counts the bytes of queued packets other than DATA.
type controlBytes struct{ atomic.Int64 }

// Credit implements h2.Window.
func (r *controlBytes) Credit(n int) { r.Add(int64(-n)) }

// Packets multiplexes connections in the packets of one HTTP/2 stream, as the reference implementation does.
// One side requests connections and the other side dials them: API servers request them from a tunnel server,
// and tunnel servers from an agent. Packets is the h2.Receiver of the stream. It ignores the response header,
// so a caller that needs the header overrides the method Header.
type Packets struct {
	// Dialer dials the connections that the other side requests. nil means that the other side may not request
	// any.
	Dialer DialFunc
	// Shared is true if the stream has many connections, which therefore share one window.
	Shared bool
	// HalfClose is true if both sides treat empty data as the end of one direction. If it is false, as with a
	// reference program, the end of one direction ends the connection.
	HalfClose bool
	// ConnIDs is a counter that several Packets share: the last connection ID that was assigned. nil means that
	// this Packets has its own counter.
	ConnIDs *atomic.Int64
	// OnPacket is called for each packet, and OnStall for each connection that is closed because its reader is
	// too slow. Both may be nil.
	OnPacket func(t wire.Type, received bool)
	OnStall  func()
	// OnEnd is called once when the stream has ended, before the connections are closed. The error is nil if
	// the stream has ended normally. OnEnd may be nil.
	OnEnd func(error)

	queuedControl controlBytes
	dialled       bool // a connection was requested; a second one is an error unless Shared
	stream        *h2.Stream
	reader        wire.PacketReader
	draining      atomic.Bool

	mu           sync.Mutex
	lastConnID   atomic.Int64                            // used if ConnIDs is nil
	pendingDials map[int64]func(UnpairedEndpoint, error) // dials that this side has requested, by random number
	dialCancels  map[int64]func()                        // functions that cancel the requested dials, by random number
	conns        map[int64]*packetConn
	err          error // why the stream has ended; nil while it has not
}

// Bind sets the stream. It must be called before any other method.
func (p *Packets) Bind(s *h2.Stream) {
	p.stream = s
	p.pendingDials = map[int64]func(UnpairedEndpoint, error){}
	p.dialCancels, p.conns = map[int64]func(){}, map[int64]*packetConn{}
}

// Draining reports whether the other side has sent DRAIN: it should receive no more requests for connections.
func (p *Packets) Draining() bool { return p.draining.Load() }

// ConnCount returns the number of open connections.
func (p *Packets) ConnCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

func (p *Packets) send(packet wire.Packet) {
	p.countPacket(packet.Type, false)
	b := packet.Message()
	b.SetWindow(&p.queuedControl, b.Len())
	if p.queuedControl.Add(int64(b.Len())) > maxControlBytes {
		b.Release()
		p.Reset(errFlood)
		return
	}
	p.stream.Send(b)
}

func (p *Packets) countPacket(t wire.Type, received bool) {
	if p.OnPacket != nil {
		p.OnPacket(t, received)
	}
}

// Drain sends DRAIN, so that the other side requests no more connections.
func (p *Packets) Drain() { p.send(wire.Packet{Type: wire.Drain}) }

// Dial requests a connection from the other side. It is a DialFunc.
func (p *Packets) Dial(address string, done func(UnpairedEndpoint, error)) (cancel func()) {
	random := rand.Int64()
	p.mu.Lock()
	err := p.err
	if err == nil {
		p.pendingDials[random] = done
	}
	p.mu.Unlock()
	if err != nil {
		done(nil, err)
		return func() {}
	}
	p.send(wire.Packet{Type: wire.DialReq, Protocol: "tcp", Address: address, Random: random})
	return func() {
		if done := p.takePendingDial(random); done != nil {
			p.send(wire.Packet{Type: wire.DialCls, Random: random})
			done(nil, errCancelled)
		}
	}
}

// takePendingDial removes and returns the callback of a pending dial. It returns nil if the dial is no longer
// pending.
func (p *Packets) takePendingDial(random int64) func(UnpairedEndpoint, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := p.pendingDials[random]
	delete(p.pendingDials, random)
	return done
}

// Header implements h2.Receiver. It only handles the end of the stream.
func (p *Packets) Header(s *h2.Stream, _ []hpack.HeaderField, end bool) {
	if end {
		p.Data(s, nil, true)
	}
}

// Data implements h2.Receiver.
func (p *Packets) Data(_ *h2.Stream, b *h2.Buffer, end bool) {
	err := p.reader.Read(b, p.handlePacket)
	switch {
	case err != nil:
		p.Reset(err)
	case end && p.Dialer != nil && !p.Shared: // the other side has closed its only connection
		p.endStream()
	case end:
		p.Close(errEnded)
		p.stream.Close(nil)
	}
}

// Ended implements h2.Receiver.
func (p *Packets) Ended(_ *h2.Stream, err error) { p.Close(err) }

func (p *Packets) handlePacket(packet wire.Packet, data *h2.Buffer) error {
	p.countPacket(packet.Type, true)
	switch packet.Type {
	case wire.Data:
		p.handleData(packet.ConnectID, data)
		return nil
	case wire.DialReq:
		if p.Dialer == nil {
			return errors.New("unexpected DIAL_REQ from the side that dials")
		}
		if p.dialled && !p.Shared {
			return errors.New("unexpected second DIAL_REQ on a stream for one connection")
		}
		p.dialled = true
		p.handleDialReq(packet)
	case wire.DialRsp:
		p.handleDialRsp(packet)
	case wire.DialCls:
		p.handleDialCls(packet.Random)
	case wire.CloseReq, wire.CloseRsp:
		p.handleClose(packet)
	case wire.Drain:
		p.draining.Store(true)
	}
	data.Release()
	return nil
}

// handleDialReq dials a requested connection.
func (p *Packets) handleDialReq(packet wire.Packet) {
	random := packet.Random
	if protocol := packet.Protocol; protocol != "" && protocol != "tcp" {
		reason := fmt.Sprintf("unsupported protocol %q: want tcp", protocol)
		p.send(wire.Packet{Type: wire.DialRsp, Random: random, Error: reason})
		return
	}
	p.mu.Lock()
	if p.err != nil || p.dialCancels[random] != nil {
		p.mu.Unlock()
		return
	}
	p.dialCancels[random] = func() {}
	p.mu.Unlock()
	cancel := p.Dialer(packet.Address, func(peer UnpairedEndpoint, err error) {
		p.dialDone(random, peer, err)
	})
	p.mu.Lock()
	if p.dialCancels[random] != nil {
		p.dialCancels[random] = cancel
	}
	p.mu.Unlock()
}

// dialDone answers a DIAL_REQ with the result of the dial.
func (p *Packets) dialDone(random int64, peer UnpairedEndpoint, err error) {
	p.mu.Lock()
	wanted := p.dialCancels[random] != nil
	delete(p.dialCancels, random)
	if err != nil || !wanted || p.err != nil {
		p.mu.Unlock()
		if err == nil {
			peer.Close(errCancelled)
		} else if wanted {
			p.send(wire.Packet{Type: wire.DialRsp, Random: random, Error: err.Error()})
		}
		return
	}
	c := &packetConn{packets: p, id: cmp.Or(p.ConnIDs, &p.lastConnID).Add(1), peer: peer}
	p.conns[c.id] = c
	p.mu.Unlock()
	p.send(wire.Packet{Type: wire.DialRsp, Random: random, ConnectID: c.id})
	peer.Pair(c)
}

// handleDialRsp completes a pending dial.
func (p *Packets) handleDialRsp(packet wire.Packet) {
	done := p.takePendingDial(packet.Random)
	switch {
	case done == nil && packet.Error == "":
		p.send(wire.Packet{Type: wire.CloseReq, ConnectID: packet.ConnectID})
	case done == nil:
	case packet.Error != "":
		done(nil, errors.New(packet.Error))
	default:
		c := &packetConn{packets: p, id: packet.ConnectID}
		if err := p.addConn(c); err != nil {
			done(nil, err)
			return
		}
		done(c, nil)
	}
}

// addConn registers a connection that this side has requested.
func (p *Packets) addConn(c *packetConn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && p.conns[c.id] != nil {
		return fmt.Errorf("other end of the tunnel uses connection ID %d twice", c.id)
	}
	if p.err == nil {
		p.conns[c.id] = c
	}
	return p.err
}

// handleDialCls ends a pending dial because the other end of the tunnel has closed it. Both ends can close a dial,
// whichever requested it.
func (p *Packets) handleDialCls(random int64) {
	if done := p.takePendingDial(random); done != nil {
		done(nil, errors.New("dial closed")) // message of the reference implementation
	}
	p.mu.Lock()
	cancel := p.dialCancels[random]
	delete(p.dialCancels, random)
	p.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// handleData passes received data to the peer of a connection.
func (p *Packets) handleData(id int64, b *h2.Buffer) {
	p.mu.Lock()
	c := p.conns[id]
	p.mu.Unlock()
	switch {
	case c == nil:
		b.Release()
		p.send(p.closePacket(id, "unrecognized connectID"))
	case b != nil:
		tooMuch := p.Shared && c.addBuffered(b)
		if c.peer.Send(b); tooMuch {
			c.closeStalled()
		}
	case p.HalfClose:
		c.peer.CloseWrite()
	}
}

// closePacket returns the packet with which this side closes a connection.
func (p *Packets) closePacket(id int64, reason string) wire.Packet {
	if p.Dialer != nil {
		return wire.Packet{Type: wire.CloseRsp, ConnectID: id, Error: reason}
	}
	return wire.Packet{Type: wire.CloseReq, ConnectID: id}
}

// handleClose ends a connection that the other side has closed, or whose end it has confirmed.
func (p *Packets) handleClose(packet wire.Packet) {
	c := p.removeConn(packet.ConnectID)
	switch {
	case c != nil:
		if packet.Type == wire.CloseReq {
			p.send(p.closePacket(c.id, ""))
		}
		var reason error
		if packet.Error != "" {
			reason = errors.New(packet.Error)
		}
		c.peer.Close(reason)
		p.endStream()
	case packet.Type == wire.CloseReq:
		p.send(p.closePacket(packet.ConnectID, "Unknown connectID"))
	default: // confirms a close of this side
		p.endStream()
	}
}

// endStream ends the stream if it is not shared.
func (p *Packets) endStream() {
	if p.Shared {
		return
	}
	p.Close(nil)
	var trailer []hpack.HeaderField
	if p.Dialer != nil {
		trailer = wire.Trailer(wire.OK, "")
	}
	p.stream.Close(trailer)
}

func (p *Packets) removeConn(id int64) *packetConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[id]
	delete(p.conns, id)
	return c
}

// Close ends all connections because the stream has ended. err is nil if it has ended normally.
func (p *Packets) Close(err error) {
	lost := errLost
	if err != nil {
		lost = fmt.Errorf("%w: %w", errLost, err)
	}
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		return
	}
	p.err = lost
	pending, cancels := p.pendingDials, p.dialCancels
	var peers []Endpoint
	for _, c := range p.conns {
		if c.peer != nil { // otherwise Pair closes it
			peers = append(peers, c.peer)
		}
	}
	p.pendingDials, p.dialCancels, p.conns = nil, nil, nil
	p.mu.Unlock()
	if p.OnEnd != nil {
		p.OnEnd(err)
	}
	for _, done := range pending {
		done(nil, lost)
	}
	for _, cancel := range cancels {
		cancel()
	}
	for _, peer := range peers {
		peer.Close(err)
	}
}

// Reset resets the stream because of an error in the received packets.
func (p *Packets) Reset(err error) {
	p.stream.Reset(http2.ErrCodeProtocol)
	p.Close(err)
}
