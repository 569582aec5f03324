package tunnel

import (
	"fmt"
	"sync"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

const (
	// holdBackBytes is the number of buffered bytes of one connection above which credit for the whole stream is
	// withheld.
	holdBackBytes = 4 << 20
	// maxBufferedBytes is the number of buffered bytes above which the connection is closed at once. Only
	// messages of several hundred KiB, much larger than a Buffer, reach this limit: most of their credit is
	// granted before they are complete.
	maxBufferedBytes = 2 * holdBackBytes
	// minProgress is the number of bytes that the reader must consume in each stallTimeout while credit is
	// withheld. Otherwise the connection is closed. It is about as much as the peer may have in flight.
	minProgress  = 512 << 10
	stallTimeout = 5 * time.Second
	// stallCheckInterval is the interval at which checkStall is called.
	stallCheckInterval = time.Second
)

var errStalled = fmt.Errorf("connection stalled: more than %d MiB are buffered because the reader is too slow",
	holdBackBytes>>20)

// packetConn is the Endpoint of one connection in the packets of a stream.
type packetConn struct {
	packets *Packets
	id      int64
	peer    Endpoint

	// Used only if the stream is shared.
	mu             sync.Mutex
	buffered       int       // bytes passed to the peer and not yet released; they use up to twice as much memory
	window         h2.Window // the window of the withheld credit
	withheld       int       // credit withheld because too much is buffered
	progress       int       // bytes released since progressStart
	progressStart  time.Time
	withheldLately bool // credit was withheld since the last check
	timer          *time.Timer
}

// Pair implements UnpairedEndpoint.
func (c *packetConn) Pair(peer Endpoint) {
	p := c.packets
	p.mu.Lock()
	c.peer = peer
	err, ended := p.err, p.conns[c.id] != c
	p.mu.Unlock()
	if err != nil || ended { // the connection has ended before it had a peer
		peer.Close(err)
	}
}

// currentPeer returns the peer, or nil if there is none yet.
func (c *packetConn) currentPeer() Endpoint {
	c.packets.mu.Lock()
	defer c.packets.mu.Unlock()
	return c.peer
}

// Send implements Endpoint.
func (c *packetConn) Send(b *h2.Buffer) {
	wire.EncodeData(b, c.id)
	c.packets.countPacket(wire.Data, false)
	c.packets.stream.Send(b)
}

// CloseWrite implements Endpoint. If HalfClose is false, it ends the whole connection, as the reference
// implementation does.
func (c *packetConn) CloseWrite() {
	if !c.packets.HalfClose {
		c.Close(nil)
		if peer := c.currentPeer(); peer != nil { // otherwise Pair closes it
			peer.Close(nil)
		}
		return
	}
	b := h2.NewBuffer(0)
	wire.EncodeData(b, c.id)
	c.packets.stream.Send(b)
}

// Close implements Endpoint.
func (c *packetConn) Close(err error) {
	p := c.packets
	known := p.removeConn(c.id) != nil
	switch {
	case !p.Shared && abortsNow(err): // even if the connection has ended, because its data may still be queued
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
	default: // the peer's answer ends the stream, or the timer does
		p.send(p.closePacket(c.id, ""))
		p.stream.StartExpiry()
	}
}

// addBuffered counts data of a shared stream on its way to the peer. It reports whether too much is buffered.
func (c *packetConn) addBuffered(b *h2.Buffer) (tooMuch bool) {
	window, n := b.TakeWindow()
	b.SetWindow(c, b.Len())
	c.mu.Lock()
	c.buffered += b.Len()
	if c.buffered > holdBackBytes && n > 0 {
		c.window, c.withheld, c.withheldLately = window, c.withheld+n, true
		if c.timer == nil {
			c.progress, c.progressStart = 0, time.Now()
			c.scheduleStallCheck()
		}
		n = 0
	}
	tooMuch = c.buffered > maxBufferedBytes
	c.mu.Unlock()
	if n > 0 {
		window.Credit(n)
	}
	return tooMuch
}

// scheduleStallCheck starts the timer of the next check. The caller must hold mu.
func (c *packetConn) scheduleStallCheck() {
	var timer *time.Timer
	timer = time.AfterFunc(stallCheckInterval, func() { c.checkStall(&timer) })
	c.timer = timer
}

// Credit implements h2.Window. It returns withheld credit step by step: when the reader has released half of the
// bytes above holdBackBytes, half of the withheld credit has been returned. The other connections of the stream
// therefore progress at least at the pace of this reader. No more than holdBackBytes and one window of data is
// buffered.
func (c *packetConn) Credit(n int) {
	c.mu.Lock()
	window, credit, excess := c.window, c.withheld, c.buffered-holdBackBytes
	if c.buffered -= n; n < excess {
		credit = int(int64(credit) * int64(n) / int64(excess))
	}
	c.withheld -= credit
	c.progress += n
	// The limit is half of holdBackBytes. If it were holdBackBytes, the timer would restart whenever no credit is
	// withheld for a moment.
	if c.buffered <= holdBackBytes/2 && c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	c.mu.Unlock()
	if credit > 0 {
		window.Credit(credit)
	}
}

// checkStall closes the connection if its reader has made too little progress for stallTimeout and credit was
// withheld since the last check. It does not matter whether credit is withheld right now: even with a slow reader,
// there are moments when no credit is withheld.
func (c *packetConn) checkStall(timer **time.Timer) {
	c.mu.Lock()
	if c.timer != *timer { // the timer was replaced or stopped
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

// closeStalled closes the connection at both Endpoints and counts it.
func (c *packetConn) closeStalled() {
	if c.packets.OnStall != nil {
		c.packets.OnStall()
	}
	peer := c.peer
	c.Close(errStalled)
	peer.Close(errStalled)
}
