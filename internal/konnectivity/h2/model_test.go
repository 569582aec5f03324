package h2

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// modelEnd is one end of a stream, as it should be, and its Receiver.
type modelEnd struct {
	client bool
	sent   int         // by the goroutine that works with this end
	rough  atomic.Bool // it was broken off or closed at this end: what is on its way may be lost

	mu      sync.Mutex
	stream  *Stream
	got     int
	stalled bool
	kept    []*Buffer
	ends    int // how often its end was told
	lost    int // how often, that it is broken off
	wrong   string
}

// sequence is a byte of what one end of a stream sends.
func sequence(id uint32, client bool, i int) byte {
	if client {
		id += 128
	}
	return byte(i*7) ^ byte(i>>8) ^ byte(i>>16) + byte(id)
}

func (e *modelEnd) told(what string, s *Stream) {
	if e.wrong == "" && (e.lost > 0 || e.ends > 0 && what != "it is broken off" || s != e.stream) {
		e.wrong = what + " after the end"
	}
}

func (e *modelEnd) Header(s *Stream, _ []hpack.HeaderField, end bool) { e.Data(s, nil, end) }

func (e *modelEnd) Data(s *Stream, b *Buffer, end bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told("something arrives", s)
	if end {
		e.ends++
	}
	if b == nil {
		return
	}
	for i, c := range b.Bytes() {
		if c != sequence(s.id, !e.client, e.got+i) && e.wrong == "" {
			e.wrong = "a byte that is another"
		}
	}
	if e.got += b.Len(); e.stalled {
		e.kept = append(e.kept, b)
		return
	}
	b.Release()
}

func (e *modelEnd) Ended(s *Stream, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told("it is broken off", s)
	e.lost++
}

// stall has it give no credit, or all again that it owes.
func (e *modelEnd) stall(on bool) {
	e.mu.Lock()
	kept := e.kept
	e.stalled, e.kept = on, nil
	e.mu.Unlock()
	for _, b := range kept {
		b.Release()
	}
}

// side is all that happens at one end of a connection.
type side struct {
	conn   *Conn
	client bool
	due    atomic.Int64 // of the Buffers that were sent and have not been released

	mu   sync.Mutex
	ends []*modelEnd
}

// Credit implements Window.
func (m *side) Credit(n int) { m.due.Add(int64(-n)) }

func (m *side) add(s *Stream) *modelEnd {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &modelEnd{client: m.client, stream: s}
	m.ends = append(m.ends, e)
	return e
}

func (m *side) all() []*modelEnd {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*modelEnd(nil), m.ends...)
}

// pick is one of the newest ends; nil: there is none.
func (m *side) pick(random *rand.Rand) *modelEnd {
	const newest = 30
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ends) == 0 {
		return nil
	}
	return m.ends[max(0, len(m.ends)-1-random.IntN(newest))]
}

func (m *side) send(e *modelEnd, n int) {
	b := NewBuffer(n)
	for i := range b.Bytes() {
		b.Bytes()[i] = sequence(e.stream.id, m.client, e.sent+i)
	}
	m.due.Add(int64(n))
	b.SetWindow(m, n)
	e.stream.Send(b)
	e.sent += n
}

var trailer = []hpack.HeaderField{{Name: "a", Value: "trailer"}}

// step does something with some stream.
func (m *side) step(random *rand.Rand) {
	what := random.IntN(100)
	if m.client && what < 5 {
		_, _ = m.conn.Open(func(s *Stream) Receiver { return m.add(s) }, trailer, false)
		return
	}
	e := m.pick(random)
	switch {
	case e == nil:
	case what < 75:
		m.sendSome(e, random)
	case what < 85:
		e.stall(true)
	case what < 96:
		e.stall(false)
	case what == 96:
		e.rough.Store(true)
		e.stream.Close([][]hpack.HeaderField{nil, trailer}[random.IntN(2)])
	case what == 97:
		e.rough.Store(true)
		e.stream.Abort(trailer)
	case what == 98:
		e.rough.Store(true)
		e.stream.Reset(http2.ErrCodeCancel)
	case what == 99:
		e.rough.Store(true)
		e.stream.ResetAfterSend(http2.ErrCodeCancel)
	}
}

// sendSome sends few or many bytes, or says that there are no more.
func (m *side) sendSome(e *modelEnd, random *rand.Rand) {
	if e.sent < 0 { // it has ended
		return
	}
	switch random.IntN(20) {
	case 0:
		m.end(e, [][]hpack.HeaderField{nil, trailer}[random.IntN(2)])
	case 1, 2:
		m.send(e, 1+random.IntN(MaxPiece))
	default:
		m.send(e, 1+random.IntN(200))
	}
}

// end ends what is sent; sent is then below zero, and says it still.
func (m *side) end(e *modelEnd, trailer []hpack.HeaderField) {
	if e.sent >= 0 {
		e.stream.End(trailer)
		e.sent = ^e.sent
	}
}

// check compares what has arrived with what the other end has sent.
func (m *side) check(t *testing.T, others map[uint32]*modelEnd) {
	for _, e := range m.all() {
		other := others[e.stream.id]
		sent := ^other.sent
		orderly := !e.rough.Load() && !other.rough.Load()
		if e.wrong != "" || e.ends > 1 || e.lost > 1 || e.got > sent || orderly && (e.got != sent || e.ends != 1 || e.lost != 0) {
			t.Errorf("client %v, stream %d, orderly %v: %d bytes of %d, %d ends, broken off %d times, %s", m.client, e.stream.id, orderly, e.got, sent, e.ends, e.lost, e.wrong)
		}
		m.conn.mu.Lock()
		if s := e.stream; s.uncredited != 0 || s.recvAvailable+s.unannounced != s.recvWindow || s.firstBuffer != nil || s.queued != 0 {
			t.Errorf("client %v, stream %d: a window of %d with %d left, %d spare, %d held; %d queued", m.client, s.id, s.recvWindow, s.recvAvailable, s.unannounced, s.uncredited, s.queued)
		}
		m.conn.mu.Unlock()
	}
	if due := m.due.Load(); due != 0 {
		t.Errorf("client %v: Buffers of %d bytes were not released", m.client, due)
	}
}

// KON-053: whatever both ends do with their streams, bytes arrive in order and once, all of them where nothing is broken off; every
// credit is given back, and no stream or Buffer is left.
func TestModel(t *testing.T) {
	for range 4 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		model(t, seed)
	}
}

func model(t *testing.T, seed uint64) {
	near, far := &side{client: true}, &side{}
	a, b := wires(t)
	near.conn, far.conn = NewClient(a, Options{}), NewServer(b, Options{Accept: func(s *Stream, _ []hpack.HeaderField) Receiver { return far.add(s) }})
	var both, conns sync.WaitGroup
	conns.Go(func() { _ = near.conn.Run() })
	conns.Go(func() { _ = far.conn.Run() })
	for i, m := range []*side{near, far} {
		both.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 5000 {
				m.step(random)
			}
		})
	}
	both.Wait()
	until(t, "all streams are known", func() bool { return len(far.all()) == len(near.all()) })
	for _, m := range []*side{near, far} {
		for _, e := range m.all() {
			e.stall(false)
			m.end(e, nil)
		}
	}
	began := time.Now()
	until(t, "nothing is left", func() bool {
		return near.conn.StreamCount() == 0 && far.conn.StreamCount() == 0 && near.due.Load() == 0 && far.due.Load() == 0
	})
	if time.Since(began) > lingerTimeout {
		t.Error("a stream was left until nobody waited for it any more")
	}
	near.conn.Close(nil)
	far.conn.Close(nil)
	conns.Wait()
	near.check(t, byID(far))
	far.check(t, byID(near))
	t.Logf("%d streams", len(near.all()))
}

func byID(m *side) map[uint32]*modelEnd {
	ends := map[uint32]*modelEnd{}
	for _, e := range m.all() {
		ends[e.stream.id] = e
	}
	return ends
}
