package request

import (
	"fmt"
	goruntime "runtime"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/compute"
)

const (
	// defaultTimeout is the default timeout of a request. maxWriteTimeout is the maximum timeout of a write, and of
	// reading a body. Both values are kube-apiserver's.
	defaultTimeout  = 60 * time.Second
	MaxWriteTimeout = 34 * time.Second
	// defaultBudget is the default memory in bytes for the bodies of all requests in progress.
	defaultBudget = 1 << 30
	// MaxFreeWeight is the maximum weight of a request that needs no memory from the budget. The seats of API
	// Priority and Fairness limit the number of these requests.
	MaxFreeWeight = 256 << 10
	// webhookShare limits requests of kinds with a conversion webhook to 1/webhookShare of the budget. These
	// requests wait for webhooks and must not use up the whole budget.
	webhookShare = 2
	// waitingShare limits the memory of waiting requests to 1/waitingShare of the budget. A waiting request waits
	// for a slot or for the rest of its body.
	waitingShare = 2
	// retryAfter is the Retry-After value, in seconds, of a response that reports a lack of memory or slots.
	retryAfter = 1
)

// Limits limits the time and the memory of all requests in progress, and the number of expensive requests that run at
// once. The weight of a request is the memory in bytes that its body takes.
type Limits struct {
	Timeout  time.Duration // of all requests except long-running ones
	Memory   int64         // in bytes for the bodies of all requests
	all      *semaphore.Weighted
	webhooks *semaphore.Weighted // additional limit for kinds with a conversion webhook
	slots    *compute.Slots
	Waiting  *compute.Budget // memory of requests that wait for a slot or for the rest of their body
}

// NewLimits returns limits with the given timeout and memory. 0 means the default.
func NewLimits(timeout time.Duration, memory int64) *Limits {
	if timeout == 0 {
		timeout = defaultTimeout
	}
	if memory <= 0 {
		memory = defaultBudget
	}
	l := &Limits{
		Timeout: timeout, Memory: memory, Waiting: compute.NewBudget(memory / waitingShare),
		all: semaphore.NewWeighted(memory), webhooks: semaphore.NewWeighted(memory / webhookShare),
	}
	l.slots = compute.NewSlots(goruntime.GOMAXPROCS(0), l.Waiting)
	return l
}

// WriteTimeout returns the timeout of writes. It is also the timeout for reading a request body.
func (l *Limits) WriteTimeout() time.Duration { return min(MaxWriteTimeout, l.Timeout) }

// AcquireMemory blocks until the budget has n bytes for the request, and acquires them. While it blocks, the request
// releases its slot, because another request that holds memory may need the slot. webhook specifies that the kind has a
// conversion webhook.
func (q *Request) AcquireMemory(n int64, webhook bool) error {
	if n = min(n, q.Limits.Memory); !webhook && q.all.TryAcquire(n) {
		q.Weight = n
		return nil
	}
	ctx, cancel := q.WriteContext()
	defer cancel()
	defer q.Slot.Pause(ctx)()
	if webhook && q.webhooks.Acquire(ctx, q.webhookPart(n)) != nil {
		return memoryUnavailable()
	}
	if q.all.Acquire(ctx, n) != nil {
		if webhook {
			q.webhooks.Release(q.webhookPart(n))
		}
		return memoryUnavailable()
	}
	q.Weight, q.inWebhookShare = n, webhook
	return nil
}

// webhookPart returns the part of n bytes that is acquired from limits.webhooks.
func (l *Limits) webhookPart(n int64) int64 { return min(n, l.Memory/webhookShare) }

// GrowMemory increases the memory of the request to n bytes, or returns an error. It does not block, because two
// requests that hold memory could wait for each other.
func (q *Request) GrowMemory(n int64) error {
	switch {
	case n > q.Limits.Memory:
		return q.BodyTooHeavy(n)
	case n <= max(q.Weight, MaxFreeWeight):
		return nil
	case !q.all.TryAcquire(n - q.Weight):
		return memoryUnavailable()
	}
	q.releaseWebhookShare() // the weight changes, so the acquired share no longer matches it
	q.Weight = n
	return nil
}

// ReleaseMemory releases the memory of the request. Later calls do nothing.
func (q *Request) ReleaseMemory() {
	if n := q.Weight; n > 0 {
		q.all.Release(n)
		q.releaseWebhookShare()
		q.Weight = 0
	}
}

func (q *Request) releaseWebhookShare() {
	if q.inWebhookShare {
		q.webhooks.Release(q.webhookPart(q.Weight))
		q.inWebhookShare = false
	}
}

// BodyTooHeavy returns the 413 for a body that needs more memory than the whole budget.
func (l *Limits) BodyTooHeavy(n int64) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
		"the body takes up to %d bytes of memory, the limit is %d", n, l.Memory))
}

// memoryUnavailable returns the 503 for a request that got no memory before its deadline.
func memoryUnavailable() error {
	return unavailable("the server has no memory for the body of this request now, please try again")
}

// unavailable returns a 503 with Retry-After, so that clients retry.
func unavailable(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}
