package handlers

import (
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/compute"
)

// slowBody is the time after which a request with an incomplete body releases its seat of API Priority and
// Fairness. A client that sends slowly then blocks no other request.
const slowBody = 50 * time.Millisecond

// bodyReader reads the body of one request. It accounts for the memory and the seat of the request while the body
// is incomplete.
type bodyReader struct {
	call
	size        atomic.Int64                        // memory of the body, in bytes
	seatTimer   *time.Timer                         // releases the seat when it fires; nil if the request holds no seat
	released    chan struct{}                       // closed after the seat is released
	reservation atomic.Pointer[compute.Reservation] // in Server.waitingMemory; nil while the request holds its seat

	mu sync.Mutex
	// The reader sets no deadline after done is true, because net/http panics if the handler has returned.
	done, rejected bool
}

// newBodyReader returns a reader for the body. reserved is the number of bytes that are already allocated for the
// body. The caller calls finish after the last read.
func (q call) newBodyReader(reserved int64) *bodyReader {
	b := &bodyReader{call: q}
	b.size.Store(reserved)
	if q.Seat.Held() {
		b.released = make(chan struct{})
		b.seatTimer = time.AfterFunc(slowBody, b.releaseSeat)
	}
	return b
}

// releaseSeat releases the seat of the request. After that, the memory of the body counts as memory of a waiting
// request.
func (b *bodyReader) releaseSeat() {
	defer close(b.released)
	b.Seat.Release(time.Now)
	reservation := b.Waiting.Reserve(b.Attributes.User.GetName(), b.reject)
	b.reservation.Store(reservation)
	reservation.Resize(b.size.Load())
}

// reject aborts the read because the user's waiting requests take too much memory.
func (b *bodyReader) reject() { b.interrupt(true) }

// abort aborts the read.
func (b *bodyReader) abort() { b.interrupt(false) }

func (b *bodyReader) interrupt(rejected bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		b.rejected = b.rejected || rejected
		b.SetReadDeadline(time.Now())
	}
}

// Read implements io.Reader.
func (b *bodyReader) Read(p []byte) (int, error) {
	n, err := b.R.Body.Read(p)
	if size := b.size.Add(int64(n)); n > 0 {
		if reservation := b.reservation.Load(); reservation != nil {
			reservation.Resize(size)
		}
	}
	return n, err
}

// finish marks the body as read. If the request has released its seat, finish takes a new one. It returns a 429
// if no seat is available, or if the body was rejected.
func (b *bodyReader) finish() error {
	b.mu.Lock()
	b.done = true
	b.mu.Unlock()
	if b.seatTimer == nil || b.seatTimer.Stop() {
		return nil
	}
	<-b.released
	b.reservation.Load().Release()
	if b.rejected {
		return request.TooManyExpensive()
	}
	x, ok := b.Fairness, false
	if b.Seat, ok = x.Take(b.R.Context(), &b.Attributes, time.Now()); !ok {
		return apierrors.NewTooManyRequests(request.NoSeatMessage, int(x.RetryAfter(&b.Seat)))
	}
	return nil
}
