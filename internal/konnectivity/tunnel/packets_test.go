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

const testTimeout = time.Minute

// waitFor blocks until a condition holds, and fails the test after testTimeout.
func waitFor(t testing.TB, condition string, holds func() bool) {
	t.Helper()
	limit := time.After(testTimeout)
	for !holds() {
		select {
		case <-limit:
			t.Fatalf("condition not met within %v: %s", testTimeout, condition)
		case <-time.After(time.Millisecond):
		}
	}
}

// discardReceiver is a Receiver that discards everything.
type discardReceiver struct{}

func (discardReceiver) Header(*h2.Stream, []hpack.HeaderField, bool) {}
func (discardReceiver) Data(_ *h2.Stream, b *h2.Buffer, _ bool)      { b.Release() }
func (discardReceiver) Ended(*h2.Stream, error)                      {}

// pair returns both ends of an HTTP/2 connection. The server passes each new stream to accept.
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

// countingEndpoint is an Endpoint that counts the calls of Close.
type countingEndpoint struct {
	other  Endpoint
	paired atomic.Bool
	closed atomic.Int64
}

func (e *countingEndpoint) Send(b *h2.Buffer) { b.Release() }
func (e *countingEndpoint) CloseWrite()       {}
func (e *countingEndpoint) Close(error)       { e.closed.Add(1) }
func (e *countingEndpoint) Pair(other Endpoint) {
	e.other = other
	e.paired.Store(true)
}

// side is one side of a stream of packets, with the state that a test checks.
type side struct {
	Packets
	unreleased atomic.Int64 // bytes of received Buffers that have not been released
	mu         sync.Mutex   // protects answered and endpoints
	dials      int
	answered   int // dials that were answered
	endCalls   int // calls of OnEnd
	endpoints  []*countingEndpoint
	pending    []func() // each answers a pending dial of the peer
}

// Credit implements h2.Window.
func (r *side) Credit(n int) { r.unreleased.Add(int64(-n)) }

// newSide returns a side. With hasDialer, it opens connections for its peer.
func newSide(t testing.TB, hasDialer, shared, half bool) *side {
	r := &side{}
	r.Shared, r.HalfClose, r.OnEnd = shared, half, func(error) { r.endCalls++ }
	if hasDialer {
		r.Dialer = func(address string, answered func(UnpairedEndpoint, error)) (cancel func()) {
			var once sync.Once
			answer := func(err error) func() {
				return func() {
					once.Do(func() {
						if err != nil {
							answered(nil, err)
							return
						}
						e := &countingEndpoint{}
						r.endpoints = append(r.endpoints, e)
						answered(e, nil)
					})
				}
			}
			switch address {
			case "now":
				answer(nil)()
			case "never":
				answer(errors.New("connection refused"))()
			default:
				r.pending = append(r.pending, answer(nil))
			}
			return answer(errCancelled)
		}
	}
	client, _ := pair(t, func(*h2.Stream, []hpack.HeaderField) h2.Receiver { return discardReceiver{} })
	if _, err := client.Open(func(s *h2.Stream) h2.Receiver {
		r.Bind(s)
		return discardReceiver{}
	}, wire.Request(wire.ProxyMethod, "test", false), false); err != nil {
		t.Fatal(err)
	}
	return r
}

// dial requests a connection.
func (r *side) dial() (cancel func()) {
	r.dials++
	return r.Dial("a:1", func(other UnpairedEndpoint, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.answered++
		if err == nil {
			e := &countingEndpoint{other: other}
			r.endpoints = append(r.endpoints, e)
			e.paired.Store(true)
			other.Pair(e)
		}
	})
}

// pendingRandom returns the random number of a pending dial, or a number derived from fallback if there is none.
func (r *side) pendingRandom(fallback byte) int64 {
	for random := range r.Packets.pendingDials {
		return random
	}
	return int64(fallback % 8)
}

// packet returns data that the peer sends: a packet of any type, or an invalid packet.
func (r *side) packet(kind, id, size byte) *h2.Buffer {
	p := wire.Packet{Type: wire.Type(kind % 8), ConnectID: int64(id % 4)}
	switch p.Type {
	case wire.DialReq:
		p.Random, p.Address = int64(id%8), []string{"now", "later", "never"}[size%3]
	case wire.DialRsp, wire.DialCls:
		p.Random = r.pendingRandom(id)
	case wire.Data:
		b := h2.NewBuffer(int(size) * 100)
		wire.EncodeData(b, p.ConnectID)
		return b
	case 7:
		return h2.BufferOf([]byte{0, 0, 0, 0, size, id, kind})
	}
	if size%7 == 0 {
		p.Error = "an error"
	}
	return p.Message()
}

// operate performs an operation of this side.
func (r *side) operate(operation, which byte) {
	switch {
	case operation%4 == 0 && r.Dialer == nil:
		cancel := r.dial()
		if which%3 == 0 {
			cancel()
		}
	case operation%4 == 1 && len(r.pending) > 0:
		answer := r.pending[0]
		r.pending = r.pending[1:]
		answer()
	case len(r.endpoints) > 0:
		e := r.endpoints[int(which)%len(r.endpoints)]
		if e.other == nil {
			return
		}
		switch operation % 4 {
		case 2:
			e.other.CloseWrite()
		case 3:
			e.other.Close([]error{nil, errCancelled}[which%2])
		default:
			e.other.Send(h2.BufferOf([]byte{operation, which}))
		}
	}
}

// FuzzPackets handles arbitrary packets from the peer, in any order with operations of this side. It checks
// that after the end of the stream each dial has been answered once, each connection is closed and each
// Buffer is released.
func FuzzPackets(f *testing.F) {
	f.Add([]byte{9, 0, 0, 1, 1, 1, 4, 1, 9, 2, 1, 0, 3, 1, 0}, false, true, true)
	f.Add([]byte{0, 1, 0, 4, 1, 50, 4, 1, 0, 10, 2, 0, 2, 1, 0, 5, 1, 1}, true, true, false)
	f.Add([]byte{0, 1, 1, 10, 1, 0, 4, 1, 9, 2, 1, 1, 0, 2, 0}, true, false, true)
	f.Add([]byte{9, 0, 1, 9, 0, 2, 1, 1, 1, 1, 1, 1, 9, 3, 0, 3, 1, 7}, false, true, false)
	f.Fuzz(func(t *testing.T, script []byte, hasDialer, shared, half bool) {
		r := newSide(t, hasDialer, shared, half)
		for ; len(script) >= 3; script = script[3:] {
			if script[0]%16 >= 8 {
				r.operate(script[1], script[2])
				continue
			}
			b := r.packet(script[0], script[1], script[2])
			r.unreleased.Add(int64(b.Len()))
			b.SetWindow(r, b.Len())
			r.Data(nil, b, false)
		}
		r.finish(t)
	})
}

// finish ends the stream and checks that nothing is left.
func (r *side) finish(t *testing.T) {
	r.Reset(errCancelled)
	for _, answer := range r.pending {
		answer()
	}
	if r.ConnCount() != 0 || r.answered != r.dials || r.endCalls != 1 {
		t.Errorf("%d connections are open; %d of %d dials were answered; OnEnd was called %d times, want 1",
			r.ConnCount(), r.answered, r.dials, r.endCalls)
	}
	for _, e := range r.endpoints {
		if e.closed.Load() == 0 && !closedLocally(e) {
			t.Error("a connection was not closed")
		}
	}
	waitFor(t, "sent packets are released", func() bool { return r.queuedControl.Load() == 0 })
	if n := r.unreleased.Load(); n > 7*255*100 || n < 0 { // an incomplete message may still hold some bytes
		t.Errorf("%d bytes were not released", n)
	}
}

// closedLocally reports whether this side has closed the connection itself.
func closedLocally(e *countingEndpoint) bool {
	c, ok := e.other.(*packetConn)
	return ok && c.packets.removeConn(c.id) == nil
}

// TestCloseWhileReading checks that another goroutine may close the stream while packets are read, for example
// when its replies exceed the limit.
func TestCloseWhileReading(t *testing.T) {
	for range 200 {
		r := newSide(t, false, true, true)
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
		for _, e := range r.endpoints {
			waitFor(t, "the connections are closed", func() bool { return e.closed.Load() > 0 })
		}
	}
}

// TestLateCancel checks that cancelling an answered dial has no effect: the endpoint is still notified when
// the connection ends.
func TestLateCancel(t *testing.T) {
	a, b := net.Pipe()
	requester := h2.NewServer(a, h2.Options{})
	dialer := h2.NewClient(b, h2.Options{Accept: func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		s.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
		return discardReceiver{}
	}})
	var both sync.WaitGroup
	both.Go(func() { _ = requester.Run() })
	both.Go(func() { _ = dialer.Run() })
	endpoint := &countingEndpoint{}
	paired := make(chan error, 1)
	cancel := Connect(requester)("a:1", func(other UnpairedEndpoint, err error) {
		if err == nil {
			other.Pair(endpoint)
		}
		paired <- err
	})
	if err := <-paired; err != nil {
		t.Fatal(err)
	}
	cancel()
	dialer.Close(nil)
	waitFor(t, "the endpoint is notified", func() bool { return endpoint.closed.Load() == 1 })
	both.Wait()
}

// TestStreamEnd checks the error that OnEnd receives. The end of the stream is normal for the dialling side of
// a stream with one connection, and an error in all other cases.
func TestStreamEnd(t *testing.T) {
	for _, c := range []struct {
		hasDialer, shared bool
		want              error
	}{{true, false, nil}, {true, true, errEnded}, {false, true, errEnded}, {false, false, errEnded}} {
		for name, end := range map[string]func(*side){
			"data":   func(r *side) { r.Data(nil, nil, true) },
			"header": func(r *side) { r.Header(nil, nil, true) },
		} {
			r := newSide(t, c.hasDialer, c.shared, true)
			var errs []error
			r.OnEnd = func(err error) { errs = append(errs, err) }
			end(r)
			if r.Ended(nil, errLost); len(errs) != 1 || errs[0] != c.want {
				t.Errorf("%+v, %s: OnEnd received %v, want %v once", c, name, errs, c.want)
			}
		}
	}
}

// TestImmediateHalfClose checks an API server that ends its direction at the moment when it receives DIAL_RSP,
// with an agent that does not support half-close. The connection must end on both sides (KON-053).
func TestImmediateHalfClose(t *testing.T) {
	agentSide, frontend := newSide(t, false, true, false), &Packets{HalfClose: true}
	frontend.Dialer = agentSide.Dial
	frontend.OnPacket = func(typ wire.Type, received bool) {
		if typ == wire.DialRsp && !received { // another goroutine could do this now
			if err := frontend.handlePacket(wire.Packet{Type: wire.Data, ConnectID: 1}, nil); err != nil {
				t.Error(err)
			}
		}
	}
	client, _ := pair(t, func(*h2.Stream, []hpack.HeaderField) h2.Receiver { return discardReceiver{} })
	if _, err := client.Open(func(s *h2.Stream) h2.Receiver {
		frontend.Bind(s)
		return frontend
	}, wire.Request(wire.ProxyMethod, "tunnel", false), false); err != nil {
		t.Fatal(err)
	}
	frontend.handleDialReq(wire.Packet{Type: wire.DialReq, Random: 5, Address: "a:1"})
	for random := range agentSide.Packets.pendingDials {
		agentSide.handleDialRsp(wire.Packet{Type: wire.DialRsp, Random: random, ConnectID: 9})
	}
	if n, m := frontend.ConnCount(), agentSide.ConnCount(); n+m != 0 {
		t.Errorf("%d connections are open on the API server's side and %d on the agent's, want none", n, m)
	}
}

// TestEndWithoutTrailer checks that a stream which the tunnel server ends without a gRPC trailer is removed on
// the side of the API server (KON-053).
func TestEndWithoutTrailer(t *testing.T) {
	api, _ := pair(t, func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
		s.Header(wire.Response(), false)
		s.End(nil)
		return discardReceiver{}
	})
	p := &Packets{}
	if _, err := api.Open(func(s *h2.Stream) h2.Receiver {
		p.Bind(s)
		return p
	}, wire.Request(wire.ProxyMethod, "tunnel", false), false); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the stream is removed", func() bool { return api.StreamCount() == 0 })
}
