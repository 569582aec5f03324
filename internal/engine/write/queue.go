package write

import (
	"context"
	"hash/maphash"
	"sync"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

// queues makes conflicting writes retry one after another. Without a queue, many concurrent writers of one object
// or node usage record would waste most of their work. All of them would decode and merge, and all but one would
// conflict again. Only writes that have conflicted queue. The zero value is ready to use.
type queues struct {
	once  sync.Once
	slots [64]chan struct{}
}

var queueSeed = maphash.MakeSeed()

// slotOf returns the queue of a key. Keys may share a queue.
func (q *queues) slotOf(key string) chan struct{} {
	q.once.Do(func() {
		for i := range q.slots {
			q.slots[i] = make(chan struct{}, 1)
		}
	})
	return q.slots[maphash.String(queueSeed, key)%uint64(len(q.slots))]
}

// enterQueue waits until this write is at the head of the queue for key. The queue holds the writes that conflicted
// on key.
func (w *write) enterQueue(ctx context.Context, key string) error {
	if w.queued != nil || w.View.Remote { // a write that calls a webhook could block the queue for a long time
		return nil
	}
	slot := w.writer.queues.slotOf(key)
	select {
	case slot <- struct{}{}:
		w.queued = slot
		return nil
	case <-ctx.Done():
		return verb.Status(ctx.Err())
	}
}

// leaveQueue allows the next write in the queue to retry. It is called at the end of a write, and before a write
// waits for a webhook. For a related write it also leaves the queue of the outer write.
func (w *write) leaveQueue() {
	if w.outer != nil {
		w.outer.leaveQueue()
	}
	if w.queued != nil {
		<-w.queued
		w.queued = nil
	}
}
