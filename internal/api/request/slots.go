package request

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/compute"
	"github.com/trellis-k8s/trellis/internal/engine/record"
)

// A request that exceeds one of these sizes is expensive. It needs a slot while it computes.
const (
	ExpensiveBody   = 64 << 10 // bytes of a request body
	expensiveObject = 64 << 10 // bytes of an object that is converted to a format other than JSON
)

// SlowWrite is the time after which a request that writes to its client releases its slot.
const SlowWrite = 5 * time.Millisecond

// waitingRequest is the memory in bytes of a waiting request, in addition to its body.
const waitingRequest = 64 << 10

// TakeSlot blocks until the request has a slot. The request holds the slot until its response is written. memory
// is the size of its body in bytes. A request that has to wait releases its seat, so that inexpensive requests of
// the same priority level can run.
func (q *Request) TakeSlot(memory int) error {
	if q.Slot == nil {
		q.Slot = q.NewSlot()
	}
	if q.Slot.TryAcquire() {
		return nil
	}
	q.Seat.Release(time.Now)
	ctx, cancel := q.WriteContext()
	defer cancel()
	err := q.Slot.Acquire(ctx, waitingRequest+int64(memory))
	switch {
	case errors.Is(err, compute.ErrTooMany):
		return TooManyExpensive()
	case err != nil:
		return unavailable("the server is busy with other expensive requests, please try again")
	}
	return nil
}

// NewSlot returns a slot that is not acquired.
func (q *Request) NewSlot() *compute.Slot { return q.slots.For(q.Attributes.User.GetName()) }

// TakeSlotToEncode takes a slot for objects that are converted to a format other than the stored one.
func (q *Request) TakeSlotToEncode(objects ...record.Object) error {
	if m := &q.Media; m.Format == encoding.FormatJSON && !m.Pretty && m.View == encoding.ViewObject {
		return nil
	}
	size := 0
	for _, o := range objects {
		if size += len(o.Record.Value); size > expensiveObject {
			return q.TakeSlot(0)
		}
	}
	return nil
}

// pausingWriter writes to the client of a request. It releases the slot of the request during a slow write, so
// that a slow client delays no other request.
type pausingWriter struct{ *Request }

func (u pausingWriter) Write(p []byte) (int, error) {
	defer u.Slot.PauseAfter(u.R.Context(), SlowWrite)()
	return u.W.Write(p)
}

// TooManyExpensive returns the 429 for a request of the user whose waiting requests take the most memory.
func TooManyExpensive() error {
	return apierrors.NewTooManyRequests("too many expensive requests are waiting, please try again later", retryAfter)
}
