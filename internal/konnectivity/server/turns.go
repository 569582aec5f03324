package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/lru"
)

const (
	maxReviews      = 16             // at a time: agents that come back all at once are not to flood the API server
	maxOfHost       = maxReviews / 2 // of one address, whose strangers so never have all turns
	maxKnown        = 10_000         // agents that are known again
	knownPatience   = 15 * time.Second
	strangePatience = 5 * time.Second
)

var errNoTurn = errors.New("the token was not reviewed: too many others are")

// turns are those of agents whose tokens are reviewed. Who has been let in before has turns of its own, so that strangers cannot keep
// it out. It is known by its ID and its address, as its token may be a new one: that decides when it is reviewed, and nothing else, so
// that who knows an ID and shares the address gains a better place in the line alone.
type turns struct {
	met            *lru.Cache
	known, strange lane

	mu    sync.Mutex
	hosts map[string]*host // by address
}

// host is where strangers come from; there may be many agents behind an address.
type host struct {
	lane
	strangers int // that wait or are reviewed
}

// lane is turns that are taken in their order, with the patience to wait for one, and as much for the review.
type lane struct {
	free     chan struct{}
	patience time.Duration
}

func newTurns() *turns {
	return &turns{
		met:     lru.New(maxKnown),
		hosts:   map[string]*host{},
		known:   lane{make(chan struct{}, maxReviews), knownPatience},
		strange: lane{make(chan struct{}, maxReviews), strangePatience},
	}
}

// review calls one when it is the turn of who has an ID, at an address. The error is that of the review, or says that there was none.
func (t *turns) review(ctx context.Context, id, address string, review func(context.Context) error) error {
	who := id + " " + address
	if _, met := t.met.Get(who); met {
		return t.known.take(ctx, review)
	}
	among := t.enter(address)
	defer t.leave(address)
	err := among.take(ctx, func(ctx context.Context) error { return t.strange.take(ctx, review) })
	if err == nil {
		t.met.Add(who, nil)
	}
	return err
}

// enter returns the lane of those strangers that come from an address. It is there until the last of them leaves.
func (t *turns) enter(address string) lane {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[address]
	if h == nil {
		h = &host{lane: lane{make(chan struct{}, maxOfHost), strangePatience}}
		t.hosts[address] = h
	}
	h.strangers++
	return h.lane
}

func (t *turns) leave(address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[address]
	if h.strangers--; h.strangers == 0 {
		delete(t.hosts, address)
	}
}

// take waits for a turn, and calls review.
func (l lane) take(ctx context.Context, review func(context.Context) error) error {
	waiting, over := context.WithTimeout(ctx, l.patience)
	defer over()
	select {
	case l.free <- struct{}{}:
		defer func() { <-l.free }()
	case <-waiting.Done():
		return fmt.Errorf("%w: %w", errNoTurn, waiting.Err())
	}
	ctx, over = context.WithTimeout(ctx, l.patience)
	defer over()
	return review(ctx)
}
