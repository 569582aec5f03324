package tunnel

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// patience is how long anything may take before a test gives up.
const patience = time.Minute

func until(t testing.TB, what string, true func() bool) {
	t.Helper()
	limit := time.After(patience)
	for !true() {
		select {
		case <-limit:
			t.Fatalf("not within %v: %s", patience, what)
		case <-time.After(time.Millisecond):
		}
	}
}

// ignores is a Receiver that wants nothing.
type ignores struct{}

func (ignores) Header(*h2.Stream, []hpack.HeaderField, bool) {}
func (ignores) Data(_ *h2.Stream, b *h2.Buffer, _ bool)      { b.Release() }
func (ignores) Ended(*h2.Stream, error)                      {}

// pair returns both ends of a connection, that end with the test. The server takes all streams by accept.
func pair(t testing.TB, accept func(*h2.Stream, []hpack.HeaderField) h2.Receiver) (client, server *h2.Conn) {
	a, b := net.Pipe()
	client, server = h2.NewClient(a, h2.Options{}), h2.NewServer(b, h2.Options{Accept: accept})
	var both sync.WaitGroup
	both.Go(func() { _ = client.Run() })
	both.Go(func() { _ = server.Run() })
	t.Cleanup(func() {
		client.Close(nil)
		server.Close(nil)
		both.Wait()
	})
	return client, server
}

// counted is an End that counts.
type counted struct {
	other  Endpoint
	joined atomic.Bool
	closed atomic.Int64
}

func (e *counted) Send(b *h2.Buffer) { b.Release() }
func (e *counted) CloseWrite()       {}
func (e *counted) Close(error)       { e.closed.Add(1) }
func (e *counted) Pair(other Endpoint) {
	e.other = other
	e.joined.Store(true)
}

// role is one side of Packets, with what it was given.
type role struct {
	Packets
	due     atomic.Int64 // bytes of Buffers that it has not released
	telling sync.Mutex
	asked   int // dials of this side
	told    int // of which it was told
	overs   int
	ends    []*counted
	pending []func() // answers that are due
}

// Credit implements h2.Creditor.
func (r *role) Credit(n int) { r.due.Add(int64(-n)) }

func newRole(t testing.TB, answers, shared, half bool) *role {
	r := &role{}
	r.Shared, r.HalfClose, r.OnEnd = shared, half, func(error) { r.overs++ }
	if answers {
		r.Dialer = func(address string, answered func(UnpairedEndpoint, error)) (cancel func()) {
			var once sync.Once
			answer := func(err error) func() {
				return func() {
					once.Do(func() {
						if err != nil {
							answered(nil, err)
							return
						}
						e := &counted{}
						r.ends = append(r.ends, e)
						answered(e, nil)
					})
				}
			}
			switch address {
			case "now":
				answer(nil)()
			case "never":
				answer(errors.New("nobody listens"))()
			default:
				r.pending = append(r.pending, answer(nil))
			}
			return answer(errCancelled)
		}
	}
	client, _ := pair(t, func(*h2.Stream, []hpack.HeaderField) h2.Receiver { return ignores{} })
	if _, err := client.Open(func(s *h2.Stream) h2.Receiver {
		r.Bind(s)
		return ignores{}
	}, wire.Request(wire.ProxyMethod, "test", false), false); err != nil {
		t.Fatal(err)
	}
	return r
}

// dial asks for a connection.
func (r *role) dial() (cancel func()) {
	r.asked++
	return r.Dial("a:1", func(other UnpairedEndpoint, err error) {
		r.telling.Lock()
		defer r.telling.Unlock()
		r.told++
		if err == nil {
			e := &counted{other: other}
			r.ends = append(r.ends, e)
			e.joined.Store(true)
			other.Pair(e)
		}
	})
}

// random is a number that somebody waits for an answer to, if there is one.
func (r *role) random(or byte) int64 {
	for random := range r.Packets.pendingDials {
		return random
	}
	return int64(or % 8)
}

// piece is something that the other side sends: a packet of any type, or what is none.
func (r *role) piece(what, id, size byte) *h2.Buffer {
	p := wire.Packet{Type: wire.Type(what % 8), ConnectID: int64(id % 4)}
	switch p.Type {
	case wire.DialReq:
		p.Random, p.Address = int64(id%8), []string{"now", "later", "never"}[size%3]
	case wire.DialRsp, wire.DialCls:
		p.Random = r.random(id)
	case wire.Data:
		b := h2.NewBuffer(int(size) * 100)
		wire.EncodeData(b, p.ConnectID)
		return b
	case 7:
		return h2.BufferOf([]byte{0, 0, 0, 0, size, id, what})
	}
	if size%7 == 0 {
		p.Error = "an error"
	}
	return p.Message()
}

// act has this side do something.
func (r *role) act(what, which byte) {
	switch {
	case what%4 == 0 && r.Dialer == nil:
		cancel := r.dial()
		if which%3 == 0 {
			cancel()
		}
	case what%4 == 1 && len(r.pending) > 0:
		answer := r.pending[0]
		r.pending = r.pending[1:]
		answer()
	case len(r.ends) > 0:
		e := r.ends[int(which)%len(r.ends)]
		if e.other == nil {
			return
		}
		switch what % 4 {
		case 2:
			e.other.CloseWrite()
		case 3:
			e.other.Close([]error{nil, errCancelled}[which%2])
		default:
			e.other.Send(h2.BufferOf([]byte{what, which}))
		}
	}
}

// FuzzPackets: no packets of the other side, of any type, for any connection, in any order with what this side does, do harm; and when the
// stream has gone nothing is left: each dial has been told once, each connection is closed, each Buffer is released.
func FuzzPackets(f *testing.F) {
	f.Add([]byte{9, 0, 0, 1, 1, 1, 4, 1, 9, 2, 1, 0, 3, 1, 0}, false, true, true)
	f.Add([]byte{0, 1, 0, 4, 1, 50, 4, 1, 0, 10, 2, 0, 2, 1, 0, 5, 1, 1}, true, true, false)
	f.Add([]byte{0, 1, 1, 10, 1, 0, 4, 1, 9, 2, 1, 1, 0, 2, 0}, true, false, true)
	f.Add([]byte{9, 0, 1, 9, 0, 2, 1, 1, 1, 1, 1, 1, 9, 3, 0, 3, 1, 7}, false, true, false)
	f.Fuzz(func(t *testing.T, script []byte, answers, shared, half bool) {
		r := newRole(t, answers, shared, half)
		for ; len(script) >= 3; script = script[3:] {
			if script[0]%16 >= 8 {
				r.act(script[1], script[2])
				continue
			}
			b := r.piece(script[0], script[1], script[2])
			r.due.Add(int64(b.Len()))
			b.SetWindow(r, b.Len())
			r.Data(nil, b, false)
		}
		r.rest(t)
	})
}

// rest ends it, and looks for what is left.
func (r *role) rest(t *testing.T) {
	r.Reset(errCancelled)
	for _, answer := range r.pending {
		answer()
	}
	if r.ConnCount() != 0 || r.told != r.asked || r.overs != 1 {
		t.Errorf("%d connections are open; %d of %d dials were told; it was over %d times", r.ConnCount(), r.told, r.asked, r.overs)
	}
	for _, e := range r.ends {
		if e.closed.Load() == 0 && !closedHere(e) {
			t.Error("a connection was not closed")
		}
	}
	until(t, "what it has sent is released", func() bool { return r.queuedControl.Load() == 0 })
	if due := r.due.Load(); due > 7*255*100 || due < 0 { // of a message that has not ended something may be there, with the stream
		t.Errorf("%d bytes were not released", due)
	}
}

// closedHere says that this side has closed the connection itself.
func closedHere(e *counted) bool {
	c, ok := e.other.(*packetConn)
	return ok && c.packets.removeConn(c.id) == nil
}

// The stream may be given up by another goroutine, as by one whose replies are too many, while packets are read.
func TestPacketsThatAreClosedMeanwhile(t *testing.T) {
	for range 200 {
		r := newRole(t, false, true, true)
		for range 20 {
			r.dial()
		}
		var randoms []int64
		for random := range r.Packets.pendingDials {
			randoms = append(randoms, random)
		}
		var all sync.WaitGroup
		begin := make(chan bool)
		all.Go(func() {
			<-begin
			r.Packets.Close(errFlood)
		})
		all.Go(func() {
			<-begin
			for i, random := range randoms {
				message := wire.Packet{Type: wire.DialRsp, Random: random, ConnectID: int64(i)}.Message()
				half := message.Len() / 2
				r.Data(nil, h2.BufferOf(message.Bytes()[:half]), false)
				r.Data(nil, h2.BufferOf(message.Bytes()[half:]), false)
			}
		})
		close(begin)
		all.Wait()
		for _, e := range r.ends {
			until(t, "its connections are closed", func() bool { return e.closed.Load() > 0 })
		}
	}
}

// A dial that is given up after it was answered changes nothing: who has the connection is told when it ends.
func TestLateCancel(t *testing.T) {
	a, b := net.Pipe()
	asks := h2.NewServer(a, h2.Options{})
	dials := h2.NewClient(b, h2.Options{Accept: func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		s.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
		return ignores{}
	}})
	var both sync.WaitGroup
	both.Go(func() { _ = asks.Run() })
	both.Go(func() { _ = dials.Run() })
	end := &counted{}
	joined := make(chan error, 1)
	cancel := Connect(asks)("a:1", func(other UnpairedEndpoint, err error) {
		if err == nil {
			other.Pair(end)
		}
		joined <- err
	})
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	cancel()
	dials.Close(nil)
	until(t, "it is told", func() bool { return end.closed.Load() == 1 })
	both.Wait()
}

// Who asks for a connection and has the stream of it end is done with it, in order; a stream of many that ends is lost.
func TestEndOfTheStream(t *testing.T) {
	for _, c := range []struct {
		answers, shared bool
		want            error
	}{{true, false, nil}, {true, true, errEnded}, {false, true, errEnded}, {false, false, errEnded}} {
		for what, end := range map[string]func(*role){
			"data":   func(r *role) { r.Data(nil, nil, true) },
			"header": func(r *role) { r.Header(nil, nil, true) },
		} {
			r := newRole(t, c.answers, c.shared, true)
			why := []error{}
			r.OnEnd = func(err error) { why = append(why, err) }
			end(r)
			if r.Ended(nil, errLost); len(why) != 1 || why[0] != c.want {
				t.Errorf("%+v, %s: it ended for %v", c, what, why)
			}
		}
	}
}

// TestHalfCloseAtOnce: an API server ends what it sends in the very moment that it learns of its connection, which an agent has that
// knows no halves. The connection ends, at both ends.
//
// KON-053
func TestHalfCloseAtOnce(t *testing.T) {
	agents, front := newRole(t, false, true, false), &Packets{HalfClose: true}
	front.Dialer = agents.Dial
	front.OnPacket = func(typ wire.Type, received bool) {
		if typ == wire.DialRsp && !received { // the other goroutine that there is, in this moment
			if err := front.handlePacket(wire.Packet{Type: wire.Data, ConnectID: 1}, nil); err != nil {
				t.Error(err)
			}
		}
	}
	client, _ := pair(t, func(*h2.Stream, []hpack.HeaderField) h2.Receiver { return ignores{} })
	if _, err := client.Open(func(s *h2.Stream) h2.Receiver {
		front.Bind(s)
		return front
	}, wire.Request(wire.ProxyMethod, "tunnel", false), false); err != nil {
		t.Fatal(err)
	}
	front.handleDialReq(wire.Packet{Type: wire.DialReq, Random: 5, Address: "a:1"})
	for random := range agents.Packets.pendingDials {
		agents.handleDialRsp(wire.Packet{Type: wire.DialRsp, Random: random, ConnectID: 9})
	}
	if n, m := front.ConnCount(), agents.ConnCount(); n+m != 0 {
		t.Errorf("%d connections are open at the API server's end, %d at the agent's", n, m)
	}
}

// KON-053: a tunnel server that ends a stream without a word of gRPC leaves none behind at the API server's end.
func TestEndWithoutTrailer(t *testing.T) {
	api, _ := pair(t, func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		s.Header(wire.Response(), false)
		s.End(nil)
		return ignores{}
	})
	p := &Packets{}
	if _, err := api.Open(func(s *h2.Stream) h2.Receiver {
		p.Bind(s)
		return p
	}, wire.Request(wire.ProxyMethod, "tunnel", false), false); err != nil {
		t.Fatal(err)
	}
	until(t, "the stream is gone", func() bool { return api.StreamCount() == 0 })
}
