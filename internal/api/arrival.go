package api

import (
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/compute"
)

// slowBody is the time after which a request whose body has not arrived gives up its seat: clients that send slowly hold up no other one.
const slowBody = 50 * time.Millisecond

// arrival is a body on its way.
type arrival struct {
	*request
	size atomic.Int64                        // memory of the body, in bytes
	late *time.Timer                         // gives up the seat; nil: there is none
	left chan struct{}                       // closed when the seat is given up
	stay atomic.Pointer[compute.Reservation] // among the requests that wait; nil while it has its seat

	mu            sync.Mutex
	over, refused bool // once it is over, no deadline is set: the handler may have returned, and then net/http panics
}

// expect returns the arrival of the body, with memory reserved for it. The caller calls arrived at its end.
func (q *request) expect(reserved int64) *arrival {
	a := &arrival{request: q}
	a.size.Store(reserved)
	if q.seat.Held() {
		a.left = make(chan struct{})
		a.late = time.AfterFunc(slowBody, a.unseat)
	}
	return a
}

// unseat gives up the seat. From here on, the memory of the body counts as that of a request that waits.
func (a *arrival) unseat() {
	defer close(a.left)
	a.seat.Release(time.Now)
	stay := a.server.waiting.Reserve(a.attributes.User.GetName(), a.refuse)
	a.stay.Store(stay)
	stay.Resize(a.size.Load())
}

// refuse ends the wait for the body of a request that takes too much memory.
func (a *arrival) refuse() { a.end(true) }

// stall ends the wait for the body.
func (a *arrival) stall() { a.end(false) }

func (a *arrival) end(refused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		a.refused = a.refused || refused
		a.readDeadline(time.Now())
	}
}

// Read implements io.Reader.
func (a *arrival) Read(p []byte) (int, error) {
	n, err := a.r.Body.Read(p)
	if size := a.size.Add(int64(n)); n > 0 {
		if stay := a.stay.Load(); stay != nil {
			stay.Resize(size)
		}
	}
	return n, err
}

// arrived takes a seat again if the request has given it up. The error is a 429: for a request that found no seat, and for one whose body
// had to leave.
func (a *arrival) arrived() error {
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	if a.late == nil || a.late.Stop() {
		return nil
	}
	<-a.left
	a.stay.Load().Release()
	if a.refused {
		return tooMany()
	}
	x, ok := a.server.config.Fairness, false
	if a.seat, ok = x.Take(a.r.Context(), &a.attributes, time.Now()); !ok {
		return apierrors.NewTooManyRequests(noSeat, int(x.RetryAfter(&a.seat)))
	}
	return nil
}
