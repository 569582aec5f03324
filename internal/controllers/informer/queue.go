package informer

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// BatchDelay is the delay before a reconciliation. A series of changes within the delay causes only one
// reconciliation.
const BatchDelay = 50 * time.Millisecond

// Queue is a rate-limited work queue. Only one worker at a time processes a key. A failed key is retried with
// exponential backoff.
type Queue[K comparable] struct {
	workqueue.TypedRateLimitingInterface[K]
	name string
}

// NewQueue returns an empty Queue. Log records contain its name.
func NewQueue[K comparable](name string) Queue[K] {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[K](20*time.Millisecond, 10*time.Second)
	return Queue[K]{workqueue.NewTypedRateLimitingQueue(limiter), name}
}

// Work calls do for each key, with the given number of workers, until ctx is done.
// A key for which do returns an error is retried.
func (q Queue[K]) Work(ctx context.Context, workers int, do func(context.Context, K) error) {
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for q.next(ctx, do) {
			}
		})
	}
	<-ctx.Done()
	q.ShutDown()
	running.Wait()
}

func (q Queue[K]) next(ctx context.Context, do func(context.Context, K) error) bool {
	key, shutdown := q.Get()
	if shutdown {
		return false
	}
	defer q.Done(key)
	if err := do(ctx, key); err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).V(1).Info("retry", "queue", q.name, "key", key, "reason", err.Error())
		}
		q.AddRateLimited(key)
		return true
	}
	q.Forget(key)
	return true
}

// IgnoreNotFound returns nil if err means that an object does not exist, and err otherwise.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
