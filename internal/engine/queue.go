package engine

import (
	"context"
	"hash/maphash"
	"sync"
)

// queues let writes that have lost against others try again one after the other. Without,
// many writers of one object, or one ledger, would mostly work in vain: all but one of them decode and merge for
// nothing. Writes that meet nobody never come here. The zero value is ready.
type queues struct {
	once  sync.Once
	slots [64]chan struct{}
}

func (q *queues) slotOf(key string) chan struct{} {
	q.once.Do(func() {
		for i := range q.slots {
			q.slots[i] = make(chan struct{}, 1)
		}
	})
	return q.slots[maphash.String(hashSeed, key)%uint64(len(q.slots))]
}

// enterQueue waits until it is this write's turn among those that lost a key.
func (w *write) enterQueue(ctx context.Context, key string) error {
	if w.queued != nil || w.reader.remote { // who converts by a webhook may hold the others up
		return nil
	}
	turn := w.engine.queues.slotOf(key)
	select {
	case turn <- struct{}{}:
		w.queued = turn
		return nil
	case <-ctx.Done():
		return storageError(ctx.Err())
	}
}

// leaveQueue lets the next one try: this one has ended, or asks somebody who may take longer than all of them together. What it is part of
// waits as well.
func (w *write) leaveQueue() {
	if w.outer != nil {
		w.outer.leaveQueue()
	}
	if w.queued != nil {
		<-w.queued
		w.queued = nil
	}
}
