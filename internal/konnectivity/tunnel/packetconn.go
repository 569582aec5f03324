package tunnel

import (
	"fmt"
	"sync"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

const (
	// maxKept is how many bytes of one connection may be kept before all of its stream is held back, and
	maxKept = 4 << 20
	// mostKept is how many it may come to, or it is closed at once. That takes messages much larger than a Buffer, some hundred KiB: for most
	// of such a one credit is given before it is complete.
	mostKept = 2 * maxKept
	// leastThrough how many its reader has to let through in each stallTime then, or it is closed: about as many as the other side may be
	// allowed at a time.
	leastThrough = 512 << 10
	stallTime    = 5 * time.Second
	// lookTime is how often that is looked at.
	lookTime = time.Second
)

var errStalled = fmt.Errorf("too little has been read of more than %d MiB that wait", maxKept>>20)

// packetConn is the End of a connection among packets.
type packetConn struct {
	packets *Packets
	id      int64
	other   End

	// Of a stream that is shared.
	mu       sync.Mutex
	kept     int         // bytes that were passed on and are not through; of memory they take up to twice as many
	owed     h2.Creditor // for
	withheld int         // bytes, as too much is kept
	through  int         // bytes that have gone through since
	since    time.Time
	held     bool // something was withheld since the last look
	timer    *time.Timer
}

// Join implements Joint.
func (c *packetConn) Join(other End) {
	p := c.packets
	p.mu.Lock()
	c.other = other
	lost, ended := p.err, p.open[c.id] != c
	p.mu.Unlock()
	if lost != nil || ended { // before there was anybody to be told
		other.Close(lost)
	}
}

// joined is the other End; nil: there is none yet.
func (c *packetConn) joined() End {
	c.packets.mu.Lock()
	defer c.packets.mu.Unlock()
	return c.other
}

// Send implements End.
func (c *packetConn) Send(b *h2.Buffer) {
	wire.PutData(b, c.id)
	c.packets.saw(wire.Data, false)
	c.packets.stream.Send(b)
}

// CloseWrite implements End. The reference knows no half of a connection: there it is the end of all.
func (c *packetConn) CloseWrite() {
	if !c.packets.HalfClose {
		c.Close(nil)
		if other := c.joined(); other != nil { // else Join closes it
			other.Close(nil)
		}
		return
	}
	b := h2.NewBuffer(0)
	wire.PutData(b, c.id)
	c.packets.stream.Send(b)
}

// Close implements End.
func (c *packetConn) Close(err error) {
	p := c.packets
	known := p.forget(c.id) != nil
	switch {
	case !p.Shared && atOnce(err): // also where it has ended, and what came before waits for a reader
		p.stream.Abort(wire.Trailer(wire.Unavailable, err.Error()))
		p.Close(err)
	case !known:
	case err != nil && !p.Shared:
		p.stream.Close(wire.Trailer(wire.Unavailable, err.Error()))
		p.Close(err)
	case err != nil:
		p.send(p.close(c.id, err.Error()))
	case p.Shared || p.Answer != nil:
		p.send(p.close(c.id, ""))
		p.finish()
	default: // the answer ends it, or this
		p.send(p.close(c.id, ""))
		p.stream.Expire()
	}
}

// keep counts data of a stream that is shared, on its way to the other End, and says whether that is too much.
func (c *packetConn) keep(b *h2.Buffer) (tooMuch bool) {
	owed, n := b.Debt()
	b.Owe(c, b.Len())
	c.mu.Lock()
	c.kept += b.Len()
	if c.kept > maxKept && n > 0 {
		c.owed, c.withheld, c.held = owed, c.withheld+n, true
		if c.timer == nil {
			c.through, c.since = 0, time.Now()
			c.watch()
		}
		n = 0
	}
	tooMuch = c.kept > mostKept
	c.mu.Unlock()
	if n > 0 {
		owed.Credit(n)
	}
	return tooMuch
}

// watch looks again in a while. The caller holds mu.
func (c *packetConn) watch() {
	var mine *time.Timer
	mine = time.AfterFunc(lookTime, func() { c.look(&mine) })
	c.timer = mine
}

// Credit implements h2.Creditor. Of what is withheld it gives as much as has gone through of what is too much: so the others move on at
// the pace of this reader at least, and no more is kept than maxKept and what a window lets in.
func (c *packetConn) Credit(n int) {
	c.mu.Lock()
	owed, due, over := c.owed, c.withheld, c.kept-maxKept
	if c.kept -= n; n < over {
		due = int(int64(due) * int64(n) / int64(over))
	}
	c.withheld -= due
	c.through += n
	if c.kept <= maxKept/2 && c.timer != nil { // before, it would begin anew each time that nothing is withheld for a moment
		c.timer.Stop()
		c.timer = nil
	}
	c.mu.Unlock()
	if due > 0 {
		owed.Credit(due)
	}
}

// look closes the connection if it has held up the others for too long, and still did a moment ago: at the pace of its reader nothing is
// withheld at times.
func (c *packetConn) look(timer **time.Timer) {
	c.mu.Lock()
	if c.timer != *timer { // it goes by another, or by none
		c.mu.Unlock()
		return
	}
	if c.through >= leastThrough {
		c.through, c.since = 0, time.Now()
	}
	if time.Since(c.since) < stallTime || !c.held {
		c.held = c.withheld > 0
		c.watch()
		c.mu.Unlock()
		return
	}
	c.timer = nil
	c.mu.Unlock()
	c.stall()
}

// stall closes the connection at both Ends, and counts it.
func (c *packetConn) stall() {
	if c.packets.Stalled != nil {
		c.packets.Stalled()
	}
	other := c.other
	c.Close(errStalled)
	other.Close(errStalled)
}
