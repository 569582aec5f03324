package api

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/compute"
	"github.com/trellis-k8s/trellis/internal/engine"
)

// Requests beyond one of these sizes are expensive: they need a slot of Server.slots while they compute.
const (
	expensiveQuery  = 16 << 10 // bytes of the query of the URL: a selector is parsed and validated
	expensiveBody   = 64 << 10 // bytes of a body, which is weighed
	expensiveObject = 64 << 10 // bytes of an object that is converted to another format than JSON
	expensiveList   = 500      // objects that a list reads
)

// slowWrite is the time that a request with a slot waits for its client.
const slowWrite = 5 * time.Millisecond

const (
	// waitingShare is the part of the budget that the bodies of requests may take that wait for a slot, or for the rest of their body.
	waitingShare = 2
	// waitingRequest is the memory in bytes of such a request besides its body.
	waitingRequest = 64 << 10
)

// takeSlot blocks until the request has a slot, which it keeps until its answer is written. memory is the size of its body in bytes. A
// request that waits gives up its seat, which inexpensive requests of the same priority level then get.
func (q *request) takeSlot(memory int) error {
	if q.slot == nil {
		q.slot = q.newSlot()
	}
	if q.slot.TryAcquire() {
		return nil
	}
	q.seat.Release(time.Now)
	ctx, cancel := q.limited()
	defer cancel()
	err := q.slot.Acquire(ctx, waitingRequest+int64(memory))
	switch {
	case errors.Is(err, compute.ErrTooMany):
		return tooMany()
	case err != nil:
		return busy()
	}
	return nil
}

// newSlot returns a slot that is not acquired.
func (q *request) newSlot() *compute.Slot { return q.server.slots.For(q.attributes.User.GetName()) }

// takeSlotForQuery takes a slot for a request with an expensive query. It returns false where it has answered.
func (q *request) takeSlotForQuery() bool {
	if len(q.r.URL.RawQuery) <= expensiveQuery || q.lasts() && q.verb != verbWatch { // then the query is for another server
		return true
	}
	if err := q.takeSlot(0); err != nil {
		q.fail(err)
		return false
	}
	return true
}

// takeSlotForList takes a slot for a list, or the list that a watch begins with, that reads many objects.
func (q *request) takeSlotForList(o *listOptions) error {
	selects := o.LabelSelector != nil && !o.LabelSelector.Empty() || o.FieldSelector != nil && !o.FieldSelector.Empty()
	if o.Limit > 0 && o.Limit <= expensiveList && !selects || q.server.engine.Count(q.target()) <= expensiveList {
		return nil
	}
	return q.takeSlot(0)
}

// takeSlotToEncode takes a slot where objects are converted to another format than that of the store.
func (q *request) takeSlotToEncode(objects ...engine.Object) error {
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

// unslotted writes to the client of a request. The request gives its slot back if the client is slow, and so delays no other one.
type unslotted struct{ *request }

func (u unslotted) Write(p []byte) (int, error) {
	defer u.slot.PauseAfter(u.r.Context(), slowWrite)()
	return u.w.Write(p)
}

// tooMany returns the 429 for a request whose user has the most memory of those that wait.
func tooMany() error {
	return apierrors.NewTooManyRequests("the server works on too many expensive requests, please try again later", retryAfter)
}

// busy returns the 503 for an expensive request that did not get a slot before its deadline.
func busy() error {
	return unavailable("the server works on other expensive requests now, please try again")
}
