package tunnel

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

// joined are two that speak packets to each other: one asks, the other has a socket for each connection, whose other end it serves.
func joined(t testing.TB, shared bool, serve func(address string, c net.Conn)) (asks *Packets) {
	asks, dials := &Packets{Shared: shared}, &Packets{Shared: shared}
	dials.Dialer = func(address string, answered func(UnpairedEndpoint, error)) (cancel func()) {
		near, far := net.Pipe()
		answered(NewSocket(near, func() {}), nil)
		go serve(address, far)
		return func() {}
	}
	client, server := net.Pipe()
	asking, dialling := h2.NewClient(client, h2.Options{}), h2.NewServer(server, h2.Options{Accept: func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		dials.Bind(s)
		return dials
	}})
	var both sync.WaitGroup
	both.Go(func() { _ = asking.Run() })
	both.Go(func() { _ = dialling.Run() })
	t.Cleanup(func() {
		asking.Close(nil)
		dialling.Close(nil)
		both.Wait()
	})
	return stream(t, asking, asks)
}

// connect opens a connection for a program.
func (p *Packets) connect(t testing.TB, address string) net.Conn {
	answered := make(chan net.Conn, 1)
	p.Dial(address, func(other UnpairedEndpoint, err error) {
		if err != nil {
			t.Error(err)
			close(answered)
			return
		}
		answered <- NewConn(other, address)
	})
	return <-answered
}

// KON-044: what was written before a connection is closed arrives, and its end, however slowly it is read: as long as it moves on.
func TestSlowDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 200 << 10
		ctx, over := context.WithCancel(t.Context())
		got, err := 0, error(nil)
		began := time.Now()
		asks := joined(t, false, func(_ string, c net.Conn) {
			defer over()
			for buf := make([]byte, 4<<10); err == nil; {
				var n int
				n, err = io.ReadFull(c, buf)
				got += n
				<-time.After(time.Second)
			}
		})
		conn := asks.connect(t, "slow:1")
		if _, err := conn.Write(make([]byte, all)); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if took := time.Since(began); got != all || err != io.EOF || took < lingerTimeout {
			t.Errorf("%d bytes of %d have arrived in %v, and then %v", got, all, took, err)
		}
	})
}

// credited counts what is given back.
type credited struct{ atomic.Int64 }

func (c *credited) Credit(n int) { c.Add(int64(n)) }

// KON-044: the other side may send again what a destination has read piece by piece, not only when all that waits for it is read.
func TestCreditFollowsTheReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pieces, size = 20, 20 << 10
		near, far := net.Pipe() // which holds nothing
		s := NewSocket(near, func() {})
		s.Pair(&counted{})
		var credit credited
		for range pieces {
			b := h2.NewBuffer(size)
			b.SetWindow(&credit, size)
			s.Send(b)
		}
		buf := make([]byte, size)
		for read := int64(size); read <= pieces*size; read += size {
			if _, err := io.ReadFull(far, buf); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if due := read - credit.Load(); due < 0 || due >= h2.MaxPiece {
				t.Errorf("for %d bytes of %d that were read no credit has been given", due, read)
			}
		}
		if left := pieces*size - credit.Load(); left != 0 {
			t.Errorf("for %d bytes there is no credit at the end", left)
		}
		_ = far.Close()
	})
}

// slowEnd is an End that lets through so many bytes a second, as a stream does whose other side reads slowly.
type slowEnd struct {
	rate    int
	arrived chan *h2.Buffer
	over    chan struct{}
	through atomic.Int64
	once    sync.Once
}

func (e *slowEnd) Send(b *h2.Buffer) { e.arrived <- b }
func (e *slowEnd) CloseWrite()       {}
func (e *slowEnd) Close(error)       { e.once.Do(func() { close(e.over) }) }

func (e *slowEnd) read() {
	for {
		select {
		case <-e.over:
			for len(e.arrived) > 0 {
				(<-e.arrived).Release()
			}
			return
		case b := <-e.arrived:
			select {
			case <-e.over:
			case <-time.After(time.Second * time.Duration(b.Len()) / time.Duration(e.rate)):
				e.through.Add(int64(b.Len()))
			}
			b.Release()
		}
	}
}

// KON-050: among packets, a reader that is slow and never stops holds up the others for twice stallTime at most. One that lets them through
// more often than that is let go on; one that does not is closed and counted. What is kept is bounded.
func TestSlowAmongPackets(t *testing.T) {
	for name, reader := range map[string]struct {
		rate   int // bytes a second
		closed bool
	}{"too slow": {16 << 10, true}, "slow": {160 << 10, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { slowAmongPackets(t, reader.rate, reader.closed) })
		})
	}
}

func slowAmongPackets(t *testing.T, rate int, closed bool) {
	var sent, stalled atomic.Int64
	asks := joined(t, true, func(address string, c net.Conn) {
		if address == "echo:1" {
			_, _ = io.Copy(c, c)
			return
		}
		for piece := make([]byte, 16<<10); ; sent.Add(int64(len(piece))) {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	})
	asks.OnStall = func() { stalled.Add(1) }
	echo := asks.connect(t, "echo:1")
	defer echo.Close()
	slow := &slowEnd{rate: rate, arrived: make(chan *h2.Buffer, 1<<16), over: make(chan struct{})}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer slow.Close(nil)
	reading.Go(slow.read)
	asks.Dial("endless:1", func(other UnpairedEndpoint, err error) {
		if err == nil {
			other.Pair(slow)
		}
	})
	for end := time.Now().Add(20 * stallTimeout); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		began := time.Now()
		if _, err := echo.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(echo, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*stallTimeout {
			t.Errorf("it has waited for %v", took)
		}
	}
	if n := stalled.Load(); (n == 1) != closed {
		t.Errorf("%d were closed", n)
	}
	if kept := sent.Load() - slow.through.Load(); !closed && kept > holdBackBytes+2<<20 { // windows, and what is on its way
		t.Errorf("%d KiB are kept", kept>>10)
	}
}

// KON-050: a reader that lets through too little is closed, though at its pace nothing is withheld for most of the time, and so too whenever
// it is looked at. One that holds up nobody any longer is let go on.
func TestSlowAtItsPace(t *testing.T) {
	for name, more := range map[string]bool{"more comes": true, "no more comes": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stalled atomic.Int64
				c := &packetConn{packets: &Packets{Shared: true, OnStall: func() { stalled.Add(1) }}, peer: &slowEnd{over: make(chan struct{})}}
				var kept []*h2.Buffer
				keep := func() {
					b := h2.NewBuffer(h2.MaxPiece)
					b.SetWindow(new(forgiving), b.Len())
					c.addBuffered(b)
					kept = append(kept, b)
				}
				for c.buffered <= holdBackBytes {
					keep()
				}
				if c.withheld == 0 {
					t.Fatal("nothing is withheld of too much")
				}
				release := func() {
					kept[0].Release()
					kept = kept[1:]
				}
				release()
				for end := time.Now().Add(2 * stallTimeout); time.Now().Before(end); {
					<-time.After(stallCheckInterval / 2)
					if more {
						keep()
					}
					<-time.After(stallCheckInterval / 4)
					if more {
						release()
					}
					if c.withheld > 0 {
						t.Fatalf("%d bytes are withheld at the pace of the reader", c.withheld)
					}
					<-time.After(stallCheckInterval / 4)
				}
				if closed := stalled.Load() == 1; closed != more {
					t.Errorf("closed: %v", closed)
				}
				c.Credit(c.buffered) // so that no timer is left
			})
		})
	}
}

// forgiving is a Creditor that does not count.
type forgiving struct{}

func (*forgiving) Credit(int) {}

// KON-044: small pieces that wait for a reader count as what they are, and not as memory that they do not take.
func TestSmallPiecesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pieces, size = holdBackBytes / 512, 60 // the least memory of a Buffer is 512 bytes
		near, far := net.Pipe()
		s, credit := NewSocket(near, func() {}), credited{}
		c := &packetConn{packets: &Packets{Shared: true}, peer: s}
		for range pieces {
			b := h2.NewBuffer(size)
			b.SetWindow(&credit, size)
			c.addBuffered(b)
			s.Send(b)
		}
		if given := credit.Load(); given != pieces*size {
			t.Errorf("credit was given for %d of %d bytes", given, pieces*size)
		}
		_ = far.Close()
		synctest.Wait()
	})
}
