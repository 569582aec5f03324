package tunnel

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// receives has Packets be told of what arrives.
type receives struct{ packets *Packets }

func (r receives) Header(*h2.Stream, []hpack.HeaderField, bool) {}
func (r receives) Ended(_ *h2.Stream, err error)                { r.packets.Close(err) }
func (r receives) Data(_ *h2.Stream, b *h2.Buffer, end bool) {
	if b != nil {
		if err := r.packets.Read(b); err != nil {
			r.packets.Reset(err)
		}
	}
	if end {
		r.packets.Close(nil)
	}
}

// joined are two that speak packets to each other: one asks, the other has a socket for each connection, whose other end it serves.
func joined(t testing.TB, shared bool, serve func(address string, c net.Conn)) (asks *Packets) {
	asks, dials := &Packets{Shared: shared}, &Packets{Shared: shared}
	dials.Answer = func(address string, answered func(Joint, error)) (cancel func()) {
		near, far := net.Pipe()
		answered(NewSocket(near, func() {}), nil)
		go serve(address, far)
		return func() {}
	}
	client, server := net.Pipe()
	asking, dialling := h2.NewClient(client, h2.Options{}), h2.NewServer(server, h2.Options{Accept: func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		dials.Bind(s)
		return receives{dials}
	}})
	var both sync.WaitGroup
	both.Go(func() { _ = asking.Run() })
	both.Go(func() { _ = dialling.Run() })
	t.Cleanup(func() {
		asking.Close(nil)
		dialling.Close(nil)
		both.Wait()
	})
	_, err := asking.Open(func(s *h2.Stream) h2.Receiver {
		asks.Bind(s)
		return receives{asks}
	}, wire.Request(wire.Proxy, "test", false), false)
	if err != nil {
		t.Fatal(err)
	}
	return asks
}

// connect opens a connection for a program.
func (p *Packets) connect(t testing.TB, address string) net.Conn {
	answered := make(chan net.Conn, 1)
	p.Dial(address, func(other Joint, err error) {
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
		if took := time.Since(began); got != all || err != io.EOF || took < linger {
			t.Errorf("%d bytes of %d have arrived in %v, and then %v", got, all, took, err)
		}
	})
}
