package controllers

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// queue is a rate-limited work queue. Only one worker at a time processes a key. A failed key is retried with
// exponential backoff.
type queue[K comparable] struct {
	workqueue.TypedRateLimitingInterface[K]
	name string
}

func newQueue[K comparable](name string) queue[K] {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[K](20*time.Millisecond, 10*time.Second)
	return queue[K]{workqueue.NewTypedRateLimitingQueue(limiter), name}
}

// work calls do for each key, with the given number of workers, until ctx is done.
// A key for which do returns an error is retried.
func (q queue[K]) work(ctx context.Context, workers int, do func(context.Context, K) error) {
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

func (q queue[K]) next(ctx context.Context, do func(context.Context, K) error) bool {
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
