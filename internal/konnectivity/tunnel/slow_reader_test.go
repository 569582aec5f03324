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

// connectedPackets connects two sides of a stream of packets and returns the requesting side. For each connection,
// the other side opens a Socket to a destination, which calls the function serve.
func connectedPackets(t testing.TB, shared bool, serve func(address string, c net.Conn)) (requester *Packets) {
	requester, dialer := &Packets{Shared: shared}, &Packets{Shared: shared}
	dialer.Dialer = func(address string, answered func(UnpairedEndpoint, error)) (cancel func()) {
		near, far := net.Pipe()
		answered(NewSocket(near, func() {}), nil)
		go serve(address, far)
		return func() {}
	}
	near, far := net.Pipe()
	client, server := h2.NewClient(near, h2.Options{}), h2.NewServer(far,
		h2.Options{Accept: func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
			dialer.Bind(s)
			return dialer
		}})
	var both sync.WaitGroup
	both.Go(func() { _ = client.Run() })
	both.Go(func() { _ = server.Run() })
	t.Cleanup(func() {
		client.Close(nil)
		server.Close(nil)
		both.Wait()
	})
	return openPackets(t, client, requester)
}

// connect opens a connection and returns it as a net.Conn.
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

// TestSlowDestination checks that a slow destination receives all data that was written before Close, and the
// end, as long as it makes progress (KON-044).
func TestSlowDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 200 << 10
		ctx, finished := context.WithCancel(t.Context())
		got, err := 0, error(nil)
		began := time.Now()
		requester := connectedPackets(t, false, func(_ string, c net.Conn) {
			defer finished()
			for buf := make([]byte, 4<<10); err == nil; {
				var n int
				n, err = io.ReadFull(c, buf)
				got += n
				<-time.After(time.Second)
			}
		})
		conn := requester.connect(t, "slow:1")
		if _, err := conn.Write(make([]byte, all)); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if duration := time.Since(began); got != all || err != io.EOF || duration < lingerTimeout {
			t.Errorf("received %d of %d bytes in %v, error %v", got, all, duration, err)
		}
	})
}

// creditCounter is a Window that counts the returned credit.
type creditCounter struct{ atomic.Int64 }

func (c *creditCounter) Credit(n int) { c.Add(int64(n)) }

// TestCreditFollowsReader checks that credit is returned while a destination reads, piece by piece, and not
// only after it has read everything (KON-044).
func TestCreditFollowsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pieces, size = 20, 20 << 10
		near, far := net.Pipe() // has no buffer
		s := NewSocket(near, func() {})
		s.Pair(&countingEndpoint{})
		var credit creditCounter
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
			if missing := read - credit.Load(); missing < 0 || missing >= h2.MaxPiece {
				t.Errorf("no credit for %d of %d bytes that were read", missing, read)
			}
		}
		if left := pieces*size - credit.Load(); left != 0 {
			t.Errorf("no credit for %d bytes at the end", left)
		}
		_ = far.Close()
	})
}

// slowEndpoint is an Endpoint that consumes a limited number of bytes per second, like a stream with a slow
// peer.
type slowEndpoint struct {
	rate     int
	arrived  chan *h2.Buffer
	closed   chan struct{}
	consumed atomic.Int64
	once     sync.Once
}

func (e *slowEndpoint) Send(b *h2.Buffer) { e.arrived <- b }
func (e *slowEndpoint) CloseWrite()       {}
func (e *slowEndpoint) Close(error)       { e.once.Do(func() { close(e.closed) }) }

func (e *slowEndpoint) read() {
	for {
		select {
		case <-e.closed:
			for len(e.arrived) > 0 {
				(<-e.arrived).Release()
			}
			return
		case b := <-e.arrived:
			select {
			case <-e.closed:
			case <-time.After(time.Second * time.Duration(b.Len()) / time.Duration(e.rate)):
				e.consumed.Add(int64(b.Len()))
			}
			b.Release()
		}
	}
}

// TestSlowReaderOnSharedStream checks that a slow reader blocks the other connections of a shared stream for
// at most twice stallTimeout. A reader that is fast enough stays connected, and a slower one is closed and
// counted. The buffered data is limited (KON-050).
func TestSlowReaderOnSharedStream(t *testing.T) {
	for name, reader := range map[string]struct {
		rate   int // bytes a second
		closed bool
	}{"too slow": {16 << 10, true}, "slow": {160 << 10, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkSlowReader(t, reader.rate, reader.closed) })
		})
	}
}

func checkSlowReader(t *testing.T, rate int, closed bool) {
	var sent, stalled atomic.Int64
	requester := connectedPackets(t, true, func(address string, c net.Conn) {
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
	requester.OnStall = func() { stalled.Add(1) }
	echo := requester.connect(t, "echo:1")
	defer echo.Close()
	slow := &slowEndpoint{rate: rate, arrived: make(chan *h2.Buffer, 1<<16), closed: make(chan struct{})}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer slow.Close(nil)
	reading.Go(slow.read)
	requester.Dial("endless:1", func(other UnpairedEndpoint, err error) {
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
		if duration := time.Since(began); duration > 2*stallTimeout {
			t.Errorf("the echo takes %v, want at most %v", duration, 2*stallTimeout)
		}
	}
	if n := stalled.Load(); (n == 1) != closed {
		t.Errorf("%d connections were closed as stalled, want closed = %v", n, closed)
	}
	if buffered := sent.Load() - slow.consumed.Load(); !closed && buffered > holdBackBytes+2<<20 { // and the windows
		t.Errorf("%d KiB are buffered", buffered>>10)
	}
}

// TestSlowReaderWithoutWithheldCredit checks that a reader which consumes too little is closed, even if no credit
// is withheld at the time of the check. A reader that no longer blocks other connections stays connected
// (KON-050).
func TestSlowReaderWithoutWithheldCredit(t *testing.T) {
	for name, more := range map[string]bool{"more data arrives": true, "no more data arrives": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stalled atomic.Int64
				c := &packetConn{packets: &Packets{Shared: true, OnStall: func() { stalled.Add(1) }},
					peer: &slowEndpoint{closed: make(chan struct{})}}
				var buffers []*h2.Buffer
				add := func() {
					b := h2.NewBuffer(h2.MaxPiece)
					b.SetWindow(new(discardWindow), b.Len())
					c.addBuffered(b)
					buffers = append(buffers, b)
				}
				for c.buffered <= holdBackBytes {
					add()
				}
				if c.withheld == 0 {
					t.Fatal("no credit is withheld above the limit")
				}
				release := func() {
					buffers[0].Release()
					buffers = buffers[1:]
				}
				release()
				for end := time.Now().Add(2 * stallTimeout); time.Now().Before(end); {
					<-time.After(stallCheckInterval / 2)
					if more {
						add()
					}
					<-time.After(stallCheckInterval / 4)
					if more {
						release()
					}
					if c.withheld > 0 {
						t.Fatalf("%d bytes are withheld after the reader has caught up", c.withheld)
					}
					<-time.After(stallCheckInterval / 4)
				}
				if closed := stalled.Load() == 1; closed != more {
					t.Errorf("closed = %v, want %v", closed, more)
				}
				c.Credit(c.buffered) // stops the timer
			})
		})
	}
}

// discardWindow is a Window that discards credit.
type discardWindow struct{}

func (*discardWindow) Credit(int) {}

// TestSmallBuffers checks that the limit on buffered data counts the length of small pieces, and not the memory of
// their Buffers (KON-044).
func TestSmallBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pieces, size = holdBackBytes / 512, 60 // a Buffer uses at least 512 bytes of memory
		near, far := net.Pipe()
		s, credit := NewSocket(near, func() {}), creditCounter{}
		c := &packetConn{packets: &Packets{Shared: true}, peer: s}
		for range pieces {
			b := h2.NewBuffer(size)
			b.SetWindow(&credit, size)
			c.addBuffered(b)
			s.Send(b)
		}
		if returned := credit.Load(); returned != pieces*size {
			t.Errorf("credit for %d of %d bytes", returned, pieces*size)
		}
		_ = far.Close()
		synctest.Wait()
	})
}
