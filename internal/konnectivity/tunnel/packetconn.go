package tunnel

import (
	"fmt"
	"sync"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

const (
	// holdBackBytes is how many bytes of one connection may be kept before all of its stream is held back, and
	holdBackBytes = 4 << 20
	// maxBufferedBytes is how many it may come to, or it is closed at once. That takes messages much larger than a Buffer, some hundred KiB: for most
	// of such a one credit is given before it is complete.
	maxBufferedBytes = 2 * holdBackBytes
	// minProgress how many its reader has to let through in each stallTime then, or it is closed: about as many as the other side may be
	// allowed at a time.
	minProgress  = 512 << 10
	stallTimeout = 5 * time.Second
	// stallCheckInterval is how often that is looked at.
	stallCheckInterval = time.Second
)

var errStalled = fmt.Errorf("too little has been read of more than %d MiB that wait", holdBackBytes>>20)

// packetConn is the End of a connection among packets.
type packetConn struct {
	packets *Packets
	id      int64
	peer    Endpoint

	// Of a stream that is shared.
	mu             sync.Mutex
	buffered       int       // bytes that were passed on and are not through; of memory they take up to twice as many
	window         h2.Window // for
	withheld       int       // bytes, as too much is kept
	progress       int       // bytes that have gone through since
	progressStart  time.Time
	withheldLately bool // something was withheld since the last look
	timer          *time.Timer
}

// Pair implements Joint.
func (c *packetConn) Pair(other Endpoint) {
	p := c.packets
	p.mu.Lock()
	c.peer = other
	lost, ended := p.err, p.conns[c.id] != c
	p.mu.Unlock()
	if lost != nil || ended { // before there was anybody to be told
		other.Close(lost)
	}
}

// currentPeer is the other End; nil: there is none yet.
func (c *packetConn) currentPeer() Endpoint {
	c.packets.mu.Lock()
	defer c.packets.mu.Unlock()
	return c.peer
}

// Send implements End.
func (c *packetConn) Send(b *h2.Buffer) {
	wire.EncodeData(b, c.id)
	c.packets.countPacket(wire.Data, false)
	c.packets.stream.Send(b)
}

// CloseWrite implements End. The reference knows no half of a connection: there it is the end of all.
func (c *packetConn) CloseWrite() {
	if !c.packets.HalfClose {
		c.Close(nil)
		if other := c.currentPeer(); other != nil { // else Join closes it
			other.Close(nil)
		}
		return
	}
	b := h2.NewBuffer(0)
	wire.EncodeData(b, c.id)
	c.packets.stream.Send(b)
}

// Close implements End.
func (c *packetConn) Close(err error) {
	p := c.packets
	known := p.removeConn(c.id) != nil
	switch {
	case !p.Shared && abortsNow(err): // also where it has ended, and what came before waits for a reader
		p.stream.Abort(wire.Trailer(wire.Unavailable, err.Error()))
		p.Close(err)
	case !known:
	case err != nil && !p.Shared:
		p.stream.Close(wire.Trailer(wire.Unavailable, err.Error()))
		p.Close(err)
	case err != nil:
		p.send(p.closePacket(c.id, err.Error()))
	case p.Shared || p.Dialer != nil:
		p.send(p.closePacket(c.id, ""))
		p.endStream()
	default: // the answer ends it, or this
		p.send(p.closePacket(c.id, ""))
		p.stream.StartExpiry()
	}
}

// addBuffered counts data of a stream that is shared, on its way to the other End, and says whether that is too much.
func (c *packetConn) addBuffered(b *h2.Buffer) (tooMuch bool) {
	owed, n := b.TakeWindow()
	b.SetWindow(c, b.Len())
	c.mu.Lock()
	c.buffered += b.Len()
	if c.buffered > holdBackBytes && n > 0 {
		c.window, c.withheld, c.withheldLately = owed, c.withheld+n, true
		if c.timer == nil {
			c.progress, c.progressStart = 0, time.Now()
			c.scheduleStallCheck()
		}
		n = 0
	}
	tooMuch = c.buffered > maxBufferedBytes
	c.mu.Unlock()
	if n > 0 {
		owed.Credit(n)
	}
	return tooMuch
}

// scheduleStallCheck looks again in a while. The caller holds mu.
func (c *packetConn) scheduleStallCheck() {
	var mine *time.Timer
	mine = time.AfterFunc(stallCheckInterval, func() { c.checkStall(&mine) })
	c.timer = mine
}

// Credit implements h2.Creditor. Of what is withheld it gives as much as has gone through of what is too much: so the others move on at
// the pace of this reader at least, and no more is kept than maxKept and what a window lets in.
func (c *packetConn) Credit(n int) {
	c.mu.Lock()
	owed, due, over := c.window, c.withheld, c.buffered-holdBackBytes
	if c.buffered -= n; n < over {
		due = int(int64(due) * int64(n) / int64(over))
	}
	c.withheld -= due
	c.progress += n
	if c.buffered <= holdBackBytes/2 && c.timer != nil { // before, it would begin anew each time that nothing is withheld for a moment
		c.timer.Stop()
		c.timer = nil
	}
	c.mu.Unlock()
	if due > 0 {
		owed.Credit(due)
	}
}

// checkStall closes the connection if it has held up the others for too long, and still did a moment ago: at the pace of its reader nothing is
// withheld at times.
func (c *packetConn) checkStall(timer **time.Timer) {
	c.mu.Lock()
	if c.timer != *timer { // it goes by another, or by none
		c.mu.Unlock()
		return
	}
	if c.progress >= minProgress {
		c.progress, c.progressStart = 0, time.Now()
	}
	if time.Since(c.progressStart) < stallTimeout || !c.withheldLately {
		c.withheldLately = c.withheld > 0
		c.scheduleStallCheck()
		c.mu.Unlock()
		return
	}
	c.timer = nil
	c.mu.Unlock()
	c.closeStalled()
}

// closeStalled closes the connection at both Ends, and counts it.
func (c *packetConn) closeStalled() {
	if c.packets.OnStall != nil {
		c.packets.OnStall()
	}
	other := c.peer
	c.Close(errStalled)
	other.Close(errStalled)
}
