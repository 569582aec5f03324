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
	maxReviews        = 16             // at a time: agents that come back all at once are not to flood the API server
	maxReviewsPerHost = maxReviews / 2 // of one address, whose strangers so never have all turns
	maxKnownAgents    = 10_000         // agents that are known again
	knownTimeout      = 15 * time.Second
	unknownTimeout    = 5 * time.Second
)

var errReviewQueue = errors.New("the token was not reviewed: too many others are")

// reviewQueue are those of agents whose tokens are reviewed. Who has been let in before has turns of its own, so that strangers cannot keep
// it out. It is known by its ID and its address, as its token may be a new one: that decides when it is reviewed, and nothing else, so
// that who knows an ID and shares the address gains a better place in the line alone.
type reviewQueue struct {
	knownAgents    *lru.Cache
	known, unknown reviewLimit

	mu    sync.Mutex
	hosts map[string]*hostReviews // by address
}

// hostReviews is where strangers come from; there may be many agents behind an address.
type hostReviews struct {
	reviewLimit
	waiting int // that wait or are reviewed
}

// reviewLimit is turns that are taken in their order, with the patience to wait for one, and as much for the review.
type reviewLimit struct {
	slots   chan struct{}
	timeout time.Duration
}

func newReviewQueue() *reviewQueue {
	return &reviewQueue{
		knownAgents: lru.New(maxKnownAgents),
		hosts:       map[string]*hostReviews{},
		known:       reviewLimit{make(chan struct{}, maxReviews), knownTimeout},
		unknown:     reviewLimit{make(chan struct{}, maxReviews), unknownTimeout},
	}
}

// review calls one when it is the turn of who has an ID, at an address. The error is that of the review, or says that there was none.
func (t *reviewQueue) review(ctx context.Context, id, address string, review func(context.Context) error) error {
	who := id + " " + address
	if _, met := t.knownAgents.Get(who); met {
		return t.known.do(ctx, review)
	}
	among := t.enterHost(address)
	defer t.leaveHost(address)
	err := among.do(ctx, func(ctx context.Context) error { return t.unknown.do(ctx, review) })
	if err == nil {
		t.knownAgents.Add(who, nil)
	}
	return err
}

// enterHost returns the lane of those strangers that come from an address. It is there until the last of them leaves.
func (t *reviewQueue) enterHost(address string) reviewLimit {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[address]
	if h == nil {
		h = &hostReviews{reviewLimit: reviewLimit{make(chan struct{}, maxReviewsPerHost), unknownTimeout}}
		t.hosts[address] = h
	}
	h.waiting++
	return h.reviewLimit
}

func (t *reviewQueue) leaveHost(address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[address]
	if h.waiting--; h.waiting == 0 {
		delete(t.hosts, address)
	}
}

// do waits for a turn, and calls review.
func (l reviewLimit) do(ctx context.Context, review func(context.Context) error) error {
	waiting, over := context.WithTimeout(ctx, l.timeout)
	defer over()
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-waiting.Done():
		return fmt.Errorf("%w: %w", errReviewQueue, waiting.Err())
	}
	ctx, over = context.WithTimeout(ctx, l.timeout)
	defer over()
	return review(ctx)
}
