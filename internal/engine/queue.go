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
	once sync.Once
	some [64]chan struct{}
}

func (q *queues) of(key string) chan struct{} {
	q.once.Do(func() {
		for i := range q.some {
			q.some[i] = make(chan struct{}, 1)
		}
	})
	return q.some[maphash.String(markSeed, key)%uint64(len(q.some))]
}

// queue waits until it is this write's turn among those that lost a key.
func (w *write) queue(ctx context.Context, key string) error {
	if w.turn != nil || w.reader.remote { // who converts by a webhook may hold the others up
		return nil
	}
	turn := w.engine.queues.of(key)
	select {
	case turn <- struct{}{}:
		w.turn = turn
		return nil
	case <-ctx.Done():
		return storageError(ctx.Err())
	}
}

// leave lets the next one try: this one has ended, or asks somebody who may take longer than all of them together. What it is part of
// waits as well.
func (w *write) leave() {
	if w.within != nil {
		w.within.leave()
	}
	if w.turn != nil {
		<-w.turn
		w.turn = nil
	}
}
