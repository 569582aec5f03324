package tunnel

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// maxControlBytes is how many bytes of packets other than DATA may wait for the other side to take them.
const maxControlBytes = 1 << 20

var errFlood = errors.New("the other side of the tunnel asks for answers and does not take them")

// controlBytes are bytes that wait.
type controlBytes struct{ atomic.Int64 }

// Credit implements h2.Creditor.
func (r *controlBytes) Credit(n int) { r.Add(int64(-n)) }

// Packets are the connections among the packets of one stream, as the reference implementation has them. One side asks for connections:
// an API server of a tunnel server, and that of an agent; the other dials them. It is the h2.Receiver of its stream; who wants the header
// that answers has a Header of its own.
type Packets struct {
	// Dialer dials what the other side asks for; nil: it may not ask.
	Dialer DialFunc
	// Shared says that the stream has many connections, and so one window for all of them.
	Shared bool
	// HalfClose says that both sides take data of no length as the end of what one of them sends. The reference's ends the connection.
	HalfClose bool
	// ConnIDs, unless nil, has the number of the connection that was dialled last, here or by others.
	ConnIDs *atomic.Int64
	// OnPacket, unless nil, is told of each packet, and Stalled of a connection that is closed as nothing reads what it has.
	OnPacket func(t wire.Type, received bool)
	OnStall  func()
	// OnEnd, unless nil, is told once that nothing more comes of it, before its connections are closed, and why; nil: it ended in order.
	OnEnd func(error)

	queuedControl controlBytes
	dialled       bool // for the one connection of a stream that is not Shared
	stream        *h2.Stream
	reader        wire.PacketReader
	draining      atomic.Bool

	mu           sync.Mutex
	lastConnID   atomic.Int64 // where there are no Numbers
	pendingDials map[int64]func(UnpairedEndpoint, error)
	dialCancels  map[int64]func() // to cancel
	conns        map[int64]*packetConn
	err          error
}

// Bind says which stream it is. It comes before all else.
func (p *Packets) Bind(s *h2.Stream) {
	p.stream = s
	p.pendingDials, p.dialCancels, p.conns = map[int64]func(UnpairedEndpoint, error){}, map[int64]func(){}, map[int64]*packetConn{}
}

// Draining says that the other side wants to be asked for no more connections.
func (p *Packets) Draining() bool { return p.draining.Load() }

// ConnCount is how many connections there are.
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

// Drain asks the other side to ask for no more connections.
func (p *Packets) Drain() { p.send(wire.Packet{Type: wire.Drain}) }

// Dial is a Dial of the side that asks.
func (p *Packets) Dial(address string, answered func(UnpairedEndpoint, error)) (cancel func()) {
	random := rand.Int64()
	p.mu.Lock()
	err := p.err
	if err == nil {
		p.pendingDials[random] = answered
	}
	p.mu.Unlock()
	if err != nil {
		answered(nil, err)
		return func() {}
	}
	p.send(wire.Packet{Type: wire.DialReq, Protocol: "tcp", Address: address, Random: random})
	return func() {
		if answered := p.takePendingDial(random); answered != nil {
			p.send(wire.Packet{Type: wire.DialCls, Random: random})
			answered(nil, errCancelled)
		}
	}
}

// takePendingDial takes who waits for an answer; nil: nobody does any more.
func (p *Packets) takePendingDial(random int64) func(UnpairedEndpoint, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answered := p.pendingDials[random]
	delete(p.pendingDials, random)
	return answered
}

// Header implements h2.Receiver: of a header only the end counts.
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
	case end && p.Dialer != nil && !p.Shared: // who asks wants no more of its connection
		p.endStream()
	case end:
		p.Close(errEnded)
		p.stream.Close(nil)
	}
}

// Ended implements h2.Receiver.
func (p *Packets) Ended(_ *h2.Stream, err error) { p.Close(err) }

func (p *Packets) handlePacket(handlePacket wire.Packet, data *h2.Buffer) error {
	p.countPacket(handlePacket.Type, true)
	switch handlePacket.Type {
	case wire.Data:
		p.handleData(handlePacket.ConnectID, data)
		return nil
	case wire.DialReq:
		if p.Dialer == nil {
			return errors.New("a connection is asked for by the side that is to dial them")
		}
		if p.dialled && !p.Shared {
			return errors.New("a second connection is asked for on a stream for one")
		}
		p.dialled = true
		p.handleDialReq(handlePacket)
	case wire.DialRsp:
		p.handleDialRsp(handlePacket)
	case wire.DialCls:
		p.handleDialCls(handlePacket.Random)
	case wire.CloseReq, wire.CloseRsp:
		p.handleClose(handlePacket)
	case wire.Drain:
		p.draining.Store(true)
	}
	data.Release()
	return nil
}

// handleDialReq dials what is asked for.
func (p *Packets) handleDialReq(packet wire.Packet) {
	random := packet.Random
	if protocol := packet.Protocol; protocol != "" && protocol != "tcp" {
		p.send(wire.Packet{Type: wire.DialRsp, Random: random, Error: "a tunnel has connections of tcp, and not of " + strconv.Quote(protocol)})
		return
	}
	p.mu.Lock()
	if p.err != nil || p.dialCancels[random] != nil {
		p.mu.Unlock()
		return
	}
	p.dialCancels[random] = func() {}
	p.mu.Unlock()
	cancel := p.Dialer(packet.Address, func(other UnpairedEndpoint, err error) { p.dialDone(random, other, err) })
	p.mu.Lock()
	if p.dialCancels[random] != nil {
		p.dialCancels[random] = cancel
	}
	p.mu.Unlock()
}

// dialDone says what has become of a dial.
func (p *Packets) dialDone(random int64, other UnpairedEndpoint, err error) {
	p.mu.Lock()
	wanted := p.dialCancels[random] != nil
	delete(p.dialCancels, random)
	if err != nil || !wanted || p.err != nil {
		p.mu.Unlock()
		if err == nil {
			other.Close(errCancelled)
		} else if wanted {
			p.send(wire.Packet{Type: wire.DialRsp, Random: random, Error: err.Error()})
		}
		return
	}
	c := &packetConn{packets: p, id: cmp.Or(p.ConnIDs, &p.lastConnID).Add(1), peer: other}
	p.conns[c.id] = c
	p.mu.Unlock()
	p.send(wire.Packet{Type: wire.DialRsp, Random: random, ConnectID: c.id})
	other.Pair(c)
}

// handleDialRsp is the answer to what was asked.
func (p *Packets) handleDialRsp(packet wire.Packet) {
	answered := p.takePendingDial(packet.Random)
	switch {
	case answered == nil && packet.Error == "":
		p.send(wire.Packet{Type: wire.CloseReq, ConnectID: packet.ConnectID})
	case answered == nil:
	case packet.Error != "":
		answered(nil, errors.New(packet.Error))
	default:
		c := &packetConn{packets: p, id: packet.ConnectID}
		if err := p.addConn(c); err != nil {
			answered(nil, err)
			return
		}
		answered(c, nil)
	}
}

// addConn keeps a connection that was asked for.
func (p *Packets) addConn(c *packetConn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && p.conns[c.id] != nil {
		return fmt.Errorf("two connections have the number %d", c.id)
	}
	if p.err == nil {
		p.conns[c.id] = c
	}
	return p.err
}

// handleDialCls gives up a dial: of the side that asked, or as the other side says that it has.
func (p *Packets) handleDialCls(random int64) {
	if answered := p.takePendingDial(random); answered != nil {
		answered(nil, errors.New("dial closed")) // the reference's words
	}
	p.mu.Lock()
	cancel := p.dialCancels[random]
	delete(p.dialCancels, random)
	p.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// handleData passes on what has arrived.
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

// closePacket is the packet by which this side closes a connection.
func (p *Packets) closePacket(id int64, why string) wire.Packet {
	if p.Dialer != nil {
		return wire.Packet{Type: wire.CloseRsp, ConnectID: id, Error: why}
	}
	return wire.Packet{Type: wire.CloseReq, ConnectID: id}
}

// handleClose ends a connection that the other side has closed.
func (p *Packets) handleClose(packet wire.Packet) {
	c := p.removeConn(packet.ConnectID)
	switch {
	case c != nil:
		if packet.Type == wire.CloseReq {
			p.send(p.closePacket(c.id, ""))
		}
		var why error
		if packet.Error != "" {
			why = errors.New(packet.Error)
		}
		c.peer.Close(why)
		p.endStream()
	case packet.Type == wire.CloseReq:
		p.send(p.closePacket(packet.ConnectID, "Unknown connectID"))
	default: // the answer to what this side has closed
		p.endStream()
	}
}

// endStream ends a stream that is of one connection alone.
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

// Close ends all connections, as the stream has ended; without an error if that was in order.
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
	asked, dials := p.pendingDials, p.dialCancels
	var joined []Endpoint
	for _, c := range p.conns {
		if c.peer != nil { // else Join closes it
			joined = append(joined, c.peer)
		}
	}
	p.pendingDials, p.dialCancels, p.conns = nil, nil, nil
	p.mu.Unlock()
	if p.OnEnd != nil {
		p.OnEnd(err)
	}
	for _, answered := range asked {
		answered(nil, lost)
	}
	for _, cancel := range dials {
		cancel()
	}
	for _, other := range joined {
		other.Close(err)
	}
}

// Reset breaks the stream off for what the other side has sent.
func (p *Packets) Reset(err error) {
	p.stream.Reset(http2.ErrCodeProtocol)
	p.Close(err)
}
