package api

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/compute"
	"github.com/trellis-k8s/trellis/internal/engine/record"
)

// A request that exceeds one of these sizes is expensive. It needs a slot of Server.slots while it computes.
const (
	expensiveQuery  = 16 << 10 // bytes of the URL query; its selectors are parsed and validated
	expensiveBody   = 64 << 10 // bytes of a request body
	expensiveObject = 64 << 10 // bytes of an object that is converted to a format other than JSON
	expensiveList   = 500      // objects that a list reads
)

// slowWrite is the time after which a request that writes to its client releases its slot.
const slowWrite = 5 * time.Millisecond

const (
	// waitingShare limits the memory of waiting requests to 1/waitingShare of the budget. A waiting request waits
	// for a slot or for the rest of its body.
	waitingShare = 2
	// waitingRequest is the memory in bytes of a waiting request, in addition to its body.
	waitingRequest = 64 << 10
)

// takeSlot blocks until the request has a slot. The request holds the slot until its response is written. memory
// is the size of its body in bytes. A request that has to wait releases its seat, so that inexpensive requests of
// the same priority level can run.
func (q *request) takeSlot(memory int) error {
	if q.slot == nil {
		q.slot = q.newSlot()
	}
	if q.slot.TryAcquire() {
		return nil
	}
	q.seat.Release(time.Now)
	ctx, cancel := q.writeContext()
	defer cancel()
	err := q.slot.Acquire(ctx, waitingRequest+int64(memory))
	switch {
	case errors.Is(err, compute.ErrTooMany):
		return tooManyExpensive()
	case err != nil:
		return slotUnavailable()
	}
	return nil
}

// newSlot returns a slot that is not acquired.
func (q *request) newSlot() *compute.Slot { return q.server.slots.For(q.attributes.User.GetName()) }

// takeSlotForQuery takes a slot for a request with an expensive query. It returns false if a response was
// written.
func (q *request) takeSlotForQuery() bool {
	// The server does not parse the query of a proxied request.
	if len(q.r.URL.RawQuery) <= expensiveQuery || q.isLongRunning() && q.verb != verbWatch {
		return true
	}
	if err := q.takeSlot(0); err != nil {
		q.fail(err)
		return false
	}
	return true
}

// takeSlotForList takes a slot for a list, or for the initial list of a watch, that reads many objects.
func (q *request) takeSlotForList(o *listOptions) error {
	selects := o.LabelSelector != nil && !o.LabelSelector.Empty() || o.FieldSelector != nil && !o.FieldSelector.Empty()
	if o.Limit > 0 && o.Limit <= expensiveList && !selects || q.server.engine.Count(q.target()) <= expensiveList {
		return nil
	}
	return q.takeSlot(0)
}

// takeSlotToEncode takes a slot for objects that are converted to a format other than the stored one.
func (q *request) takeSlotToEncode(objects ...record.Object) error {
	if m := &q.media; m.format == formatJSON && !m.pretty && m.view == viewObject {
		return nil
	}
	size := 0
	for _, o := range objects {
		if size += len(o.Record.Value); size > expensiveObject {
			return q.takeSlot(0)
		}
	}
	return nil
}

// pausingWriter writes to the client of a request. It releases the slot of the request during a slow write, so
// that a slow client delays no other request.
type pausingWriter struct{ *request }

func (u pausingWriter) Write(p []byte) (int, error) {
	defer u.slot.PauseAfter(u.r.Context(), slowWrite)()
	return u.w.Write(p)
}

// tooManyExpensive returns the 429 for a request of the user whose waiting requests take the most memory.
func tooManyExpensive() error {
	return apierrors.NewTooManyRequests("too many expensive requests are waiting, please try again later", retryAfter)
}

// slotUnavailable returns the 503 for an expensive request that got no slot before its deadline.
func slotUnavailable() error {
	return unavailable("the server is busy with other expensive requests, please try again")
}
