package server

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/lru"
)

const (
	maxReviews      = 16     // at a time: agents that come back all at once are not to flood the API server
	maxKnown        = 10_000 // agents that are known again
	knownPatience   = 15 * time.Second
	strangePatience = 5 * time.Second
)

// turns are those of agents whose tokens are reviewed. Who has been let in before has turns of its own, so that strangers cannot keep
// it out. It is known by its ID and its address, as its token may be a new one: that decides when it is reviewed, and nothing else, so
// that who knows an ID and shares the address gains a better place in the line alone.
type turns struct {
	met            *lru.Cache
	known, strange lane
}

// lane is turns that are taken in their order, with the patience to wait for one, and as much for the review.
type lane struct {
	free     chan struct{}
	patience time.Duration
}

func newTurns() *turns {
	return &turns{
		met:     lru.New(maxKnown),
		known:   lane{make(chan struct{}, maxReviews), knownPatience},
		strange: lane{make(chan struct{}, maxReviews), strangePatience},
	}
}

// review calls one when it is somebody's turn. The error is that of the review, or says that there was none.
func (t *turns) review(ctx context.Context, who string, review func(context.Context) error) error {
	l := t.strange
	if _, met := t.met.Get(who); met {
		l = t.known
	}
	waiting, over := context.WithTimeout(ctx, l.patience)
	defer over()
	select {
	case l.free <- struct{}{}:
		defer func() { <-l.free }()
	case <-waiting.Done():
		return fmt.Errorf("the token was not reviewed: too many others are: %w", waiting.Err())
	}
	ctx, over = context.WithTimeout(ctx, l.patience)
	defer over()
	err := review(ctx)
	if err == nil {
		t.met.Add(who, nil)
	}
	return err
}
