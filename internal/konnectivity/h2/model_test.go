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

// modelEndpoint is the Receiver of one side of a stream, and the expected state of that side.
type modelEndpoint struct {
	client  bool
	sent    int         // used only by the goroutine that drives this side
	aborted atomic.Bool // this side aborted or closed the stream, so that data in flight may be lost

	mu       sync.Mutex
	stream   *Stream
	received int
	stalled  bool
	held     []*Buffer
	ends     int // how often the end of the data was reported
	lost     int // how often Ended was called
	problem  string
}

// sequence returns byte i of the data that one side of a stream sends.
func sequence(id uint32, client bool, i int) byte {
	if client {
		id += 128
	}
	return byte(i*7) ^ byte(i>>8) ^ byte(i>>16) + byte(id)
}

func (e *modelEndpoint) checkOpen(event string, s *Stream) {
	if e.problem == "" && (e.lost > 0 || e.ends > 0 && event != "Ended" || s != e.stream) {
		e.problem = event + " after the end"
	}
}

func (e *modelEndpoint) Header(s *Stream, _ []hpack.HeaderField, end bool) { e.Data(s, nil, end) }

func (e *modelEndpoint) Data(s *Stream, b *Buffer, end bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checkOpen("Data", s)
	if end {
		e.ends++
	}
	if b == nil {
		return
	}
	for i, c := range b.Bytes() {
		if c != sequence(s.id, !e.client, e.received+i) && e.problem == "" {
			e.problem = "wrong byte"
		}
	}
	if e.received += b.Len(); e.stalled {
		e.held = append(e.held, b)
		return
	}
	b.Release()
}

func (e *modelEndpoint) Ended(s *Stream, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checkOpen("Ended", s)
	e.lost++
}

// stall makes the Receiver hold Buffers, or releases all held Buffers.
func (e *modelEndpoint) stall(on bool) {
	e.mu.Lock()
	held := e.held
	e.stalled, e.held = on, nil
	e.mu.Unlock()
	for _, b := range held {
		b.Release()
	}
}

// side is one side of the connection, with its streams.
type side struct {
	conn       *Conn
	client     bool
	unreleased atomic.Int64 // bytes of sent Buffers that have not been released

	mu   sync.Mutex
	ends []*modelEndpoint
}

// Credit implements Window.
func (m *side) Credit(n int) { m.unreleased.Add(int64(-n)) }

func (m *side) add(s *Stream) *modelEndpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &modelEndpoint{client: m.client, stream: s}
	m.ends = append(m.ends, e)
	return e
}

func (m *side) all() []*modelEndpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*modelEndpoint(nil), m.ends...)
}

// pick returns one of the newest streams, or nil if there is none.
func (m *side) pick(random *rand.Rand) *modelEndpoint {
	const newest = 30
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ends) == 0 {
		return nil
	}
	return m.ends[max(0, len(m.ends)-1-random.IntN(newest))]
}

func (m *side) send(e *modelEndpoint, n int) {
	b := NewBuffer(n)
	for i := range b.Bytes() {
		b.Bytes()[i] = sequence(e.stream.id, m.client, e.sent+i)
	}
	m.unreleased.Add(int64(n))
	b.SetWindow(m, n)
	e.stream.Send(b)
	e.sent += n
}

var trailer = []hpack.HeaderField{{Name: "a", Value: "trailer"}}

// step performs a random operation on a random stream.
func (m *side) step(random *rand.Rand) {
	operation := random.IntN(100)
	if m.client && operation < 5 {
		_, _ = m.conn.Open(func(s *Stream) Receiver { return m.add(s) }, trailer, false)
		return
	}
	e := m.pick(random)
	switch {
	case e == nil:
	case operation < 75:
		m.sendSome(e, random)
	case operation < 85:
		e.stall(true)
	case operation < 96:
		e.stall(false)
	case operation == 96:
		e.aborted.Store(true)
		e.stream.Close([][]hpack.HeaderField{nil, trailer}[random.IntN(2)])
	case operation == 97:
		e.aborted.Store(true)
		e.stream.Abort(trailer)
	case operation == 98:
		e.aborted.Store(true)
		e.stream.Reset(http2.ErrCodeCancel)
	case operation == 99:
		e.aborted.Store(true)
		e.stream.ResetAfterSend(http2.ErrCodeCancel)
	}
}

// sendSome sends few or many bytes, or ends the direction.
func (m *side) sendSome(e *modelEndpoint, random *rand.Rand) {
	if e.sent < 0 { // the direction has ended
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

// end ends the sending direction. It then stores the complement of the number of sent bytes in e.sent. A negative
// e.sent means that the direction has ended.
func (m *side) end(e *modelEndpoint, trailer []hpack.HeaderField) {
	if e.sent >= 0 {
		e.stream.End(trailer)
		e.sent = ^e.sent
	}
}

// check compares the received data with the data that the other side sent.
func (m *side) check(t *testing.T, others map[uint32]*modelEndpoint) {
	for _, e := range m.all() {
		other := others[e.stream.id]
		sent := ^other.sent
		normal := !e.aborted.Load() && !other.aborted.Load()
		if e.problem != "" || e.ends > 1 || e.lost > 1 || e.received > sent || normal &&
			(e.received != sent || e.ends != 1 || e.lost != 0) {
			t.Errorf("client %v, stream %d, normal %v: received %d of %d bytes, %d ends, Ended called %d times, %s",
				m.client, e.stream.id, normal, e.received, sent, e.ends, e.lost, e.problem)
		}
		m.conn.mu.Lock()
		if s := e.stream; s.uncredited != 0 || s.recvAvailable+s.unannounced != s.recvWindow || s.firstBuffer != nil ||
			s.queued != 0 {
			t.Errorf("client %v, stream %d: window of %d: %d available, %d unannounced, %d uncredited; %d queued",
				m.client, s.id, s.recvWindow, s.recvAvailable, s.unannounced, s.uncredited, s.queued)
		}
		m.conn.mu.Unlock()
	}
	if unreleased := m.unreleased.Load(); unreleased != 0 {
		t.Errorf("client %v: Buffers of %d bytes were not released", m.client, unreleased)
	}
}

// TestModel checks random operations of both sides. Bytes must arrive once and in order, completely unless a
// stream was aborted. All credit is returned, and no stream or Buffer is left (KON-053).
func TestModel(t *testing.T) {
	for range 4 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		model(t, seed)
	}
}

func model(t *testing.T, seed uint64) {
	near, far := &side{client: true}, &side{}
	a, b := tcpPair(t)
	near.conn, far.conn = NewClient(a, Options{}), NewServer(b,
		Options{Accept: func(s *Stream, _ []hpack.HeaderField) Receiver { return far.add(s) }})
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
	waitFor(t, "the server has accepted all streams", func() bool { return len(far.all()) == len(near.all()) })
	for _, m := range []*side{near, far} {
		for _, e := range m.all() {
			e.stall(false)
			m.end(e, nil)
		}
	}
	began := time.Now()
	waitFor(t, "no stream and no Buffer is left", func() bool {
		return near.conn.StreamCount() == 0 && far.conn.StreamCount() == 0 && near.unreleased.Load() == 0 &&
			far.unreleased.Load() == 0
	})
	if time.Since(began) > lingerTimeout {
		t.Errorf("streams ended only after %v, by a timeout", time.Since(began))
	}
	near.conn.Close(nil)
	far.conn.Close(nil)
	conns.Wait()
	near.check(t, byID(far))
	far.check(t, byID(near))
	t.Logf("%d streams", len(near.all()))
}

func byID(m *side) map[uint32]*modelEndpoint {
	ends := map[uint32]*modelEndpoint{}
	for _, e := range m.all() {
		ends[e.stream.id] = e
	}
	return ends
}
