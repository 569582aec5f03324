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

// maxReplies is how many bytes of packets other than DATA may wait for the other side to take them.
const maxReplies = 1 << 20

var errFlood = errors.New("the other side of the tunnel asks for answers and does not take them")

// replies are bytes that wait.
type replies struct{ atomic.Int64 }

// Credit implements h2.Creditor.
func (r *replies) Credit(n int) { r.Add(int64(-n)) }

// Packets are the connections among the packets of one stream, as the reference implementation has them. One side asks for connections:
// an API server of a tunnel server, and that of an agent; the other dials them. It is the h2.Receiver of its stream; who wants the header
// that answers has a Header of its own.
type Packets struct {
	// Answer dials what the other side asks for; nil: it may not ask.
	Answer Dial
	// Shared says that the stream has many connections, and so one window for all of them.
	Shared bool
	// HalfClose says that both sides take data of no length as the end of what one of them sends. The reference's ends the connection.
	HalfClose bool
	// Numbers, unless nil, has the number of the connection that was dialled last, here or by others.
	Numbers *atomic.Int64
	// Saw, unless nil, is told of each packet, and Stalled of a connection that is closed as nothing reads what it has.
	Saw     func(t wire.Type, received bool)
	Stalled func()
	// Over, unless nil, is told once that nothing more comes of it, before its connections are closed, and why; nil: it ended in order.
	Over func(error)

	waiting  replies
	used     bool // for the one connection of a stream that is not Shared
	stream   *h2.Stream
	messages wire.Messages
	draining atomic.Bool

	mu    sync.Mutex
	last  atomic.Int64 // where there are no Numbers
	asked map[int64]func(Joint, error)
	dials map[int64]func() // to cancel
	open  map[int64]*packetConn
	err   error
}

// Bind says which stream it is. It comes before all else.
func (p *Packets) Bind(s *h2.Stream) {
	p.stream = s
	p.asked, p.dials, p.open = map[int64]func(Joint, error){}, map[int64]func(){}, map[int64]*packetConn{}
}

// Draining says that the other side wants to be asked for no more connections.
func (p *Packets) Draining() bool { return p.draining.Load() }

// Open is how many connections there are.
func (p *Packets) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

func (p *Packets) send(packet wire.Packet) {
	p.saw(packet.Type, false)
	b := packet.Message()
	b.Owe(&p.waiting, b.Len())
	if p.waiting.Add(int64(b.Len())) > maxReplies {
		b.Release()
		p.Reset(errFlood)
		return
	}
	p.stream.Send(b)
}

func (p *Packets) saw(t wire.Type, received bool) {
	if p.Saw != nil {
		p.Saw(t, received)
	}
}

// Drain asks the other side to ask for no more connections.
func (p *Packets) Drain() { p.send(wire.Packet{Type: wire.Drain}) }

// Dial is a Dial of the side that asks.
func (p *Packets) Dial(address string, answered func(Joint, error)) (cancel func()) {
	random := rand.Int64()
	p.mu.Lock()
	err := p.err
	if err == nil {
		p.asked[random] = answered
	}
	p.mu.Unlock()
	if err != nil {
		answered(nil, err)
		return func() {}
	}
	p.send(wire.Packet{Type: wire.DialReq, Protocol: "tcp", Address: address, Random: random})
	return func() {
		if answered := p.asker(random); answered != nil {
			p.send(wire.Packet{Type: wire.DialCls, Random: random})
			answered(nil, errGivenUp)
		}
	}
}

// asker takes who waits for an answer; nil: nobody does any more.
func (p *Packets) asker(random int64) func(Joint, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answered := p.asked[random]
	delete(p.asked, random)
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
	err := p.messages.Read(b, p.packet)
	switch {
	case err != nil:
		p.Reset(err)
	case end && p.Answer != nil && !p.Shared: // who asks wants no more of its connection
		p.finish()
	case end:
		p.Close(errEnded)
		p.stream.Close(nil)
	}
}

// Ended implements h2.Receiver.
func (p *Packets) Ended(_ *h2.Stream, err error) { p.Close(err) }

func (p *Packets) packet(packet wire.Packet, data *h2.Buffer) error {
	p.saw(packet.Type, true)
	switch packet.Type {
	case wire.Data:
		p.data(packet.ConnectID, data)
		return nil
	case wire.DialReq:
		if p.Answer == nil {
			return errors.New("a connection is asked for by the side that is to dial them")
		}
		if p.used && !p.Shared {
			return errors.New("a second connection is asked for on a stream for one")
		}
		p.used = true
		p.dial(packet)
	case wire.DialRsp:
		p.dialled(packet)
	case wire.DialCls:
		p.dialClosed(packet.Random)
	case wire.CloseReq, wire.CloseRsp:
		p.closed(packet)
	case wire.Drain:
		p.draining.Store(true)
	}
	data.Release()
	return nil
}

// dial dials what is asked for.
func (p *Packets) dial(packet wire.Packet) {
	random := packet.Random
	if protocol := packet.Protocol; protocol != "" && protocol != "tcp" {
		p.send(wire.Packet{Type: wire.DialRsp, Random: random, Error: "a tunnel has connections of tcp, and not of " + strconv.Quote(protocol)})
		return
	}
	p.mu.Lock()
	if p.err != nil || p.dials[random] != nil {
		p.mu.Unlock()
		return
	}
	p.dials[random] = func() {}
	p.mu.Unlock()
	cancel := p.Answer(packet.Address, func(other Joint, err error) { p.answer(random, other, err) })
	p.mu.Lock()
	if p.dials[random] != nil {
		p.dials[random] = cancel
	}
	p.mu.Unlock()
}

// answer says what has become of a dial.
func (p *Packets) answer(random int64, other Joint, err error) {
	p.mu.Lock()
	wanted := p.dials[random] != nil
	delete(p.dials, random)
	if err != nil || !wanted || p.err != nil {
		p.mu.Unlock()
		if err == nil {
			other.Close(errGivenUp)
		} else if wanted {
			p.send(wire.Packet{Type: wire.DialRsp, Random: random, Error: err.Error()})
		}
		return
	}
	c := &packetConn{packets: p, id: cmp.Or(p.Numbers, &p.last).Add(1), other: other}
	p.open[c.id] = c
	p.mu.Unlock()
	p.send(wire.Packet{Type: wire.DialRsp, Random: random, ConnectID: c.id})
	other.Join(c)
}

// dialled is the answer to what was asked.
func (p *Packets) dialled(packet wire.Packet) {
	answered := p.asker(packet.Random)
	switch {
	case answered == nil && packet.Error == "":
		p.send(wire.Packet{Type: wire.CloseReq, ConnectID: packet.ConnectID})
	case answered == nil:
	case packet.Error != "":
		answered(nil, errors.New(packet.Error))
	default:
		c := &packetConn{packets: p, id: packet.ConnectID}
		if err := p.take(c); err != nil {
			answered(nil, err)
			return
		}
		answered(c, nil)
	}
}

// take keeps a connection that was asked for.
func (p *Packets) take(c *packetConn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && p.open[c.id] != nil {
		return fmt.Errorf("two connections have the number %d", c.id)
	}
	if p.err == nil {
		p.open[c.id] = c
	}
	return p.err
}

// dialClosed gives up a dial: of the side that asked, or as the other side says that it has.
func (p *Packets) dialClosed(random int64) {
	if answered := p.asker(random); answered != nil {
		answered(nil, errors.New("dial closed")) // the reference's words
	}
	p.mu.Lock()
	cancel := p.dials[random]
	delete(p.dials, random)
	p.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// data passes on what has arrived.
func (p *Packets) data(id int64, b *h2.Buffer) {
	p.mu.Lock()
	c := p.open[id]
	p.mu.Unlock()
	switch {
	case c == nil:
		b.Release()
		p.send(p.close(id, "unrecognized connectID"))
	case b != nil:
		tooMuch := p.Shared && c.keep(b)
		if c.other.Send(b); tooMuch {
			c.stall()
		}
	case p.HalfClose:
		c.other.CloseWrite()
	}
}

// close is the packet by which this side closes a connection.
func (p *Packets) close(id int64, why string) wire.Packet {
	if p.Answer != nil {
		return wire.Packet{Type: wire.CloseRsp, ConnectID: id, Error: why}
	}
	return wire.Packet{Type: wire.CloseReq, ConnectID: id}
}

// closed ends a connection that the other side has closed.
func (p *Packets) closed(packet wire.Packet) {
	c := p.forget(packet.ConnectID)
	switch {
	case c != nil:
		if packet.Type == wire.CloseReq {
			p.send(p.close(c.id, ""))
		}
		var why error
		if packet.Error != "" {
			why = errors.New(packet.Error)
		}
		c.other.Close(why)
		p.finish()
	case packet.Type == wire.CloseReq:
		p.send(p.close(packet.ConnectID, "Unknown connectID"))
	default: // the answer to what this side has closed
		p.finish()
	}
}

// finish ends a stream that is of one connection alone.
func (p *Packets) finish() {
	if p.Shared {
		return
	}
	p.Close(nil)
	var trailer []hpack.HeaderField
	if p.Answer != nil {
		trailer = wire.Trailer(wire.OK, "")
	}
	p.stream.Close(trailer)
}

func (p *Packets) forget(id int64) *packetConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.open[id]
	delete(p.open, id)
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
	asked, dials := p.asked, p.dials
	var joined []End
	for _, c := range p.open {
		if c.other != nil { // else Join closes it
			joined = append(joined, c.other)
		}
	}
	p.asked, p.dials, p.open = nil, nil, nil
	p.mu.Unlock()
	if p.Over != nil {
		p.Over(err)
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
