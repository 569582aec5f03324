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
	maxReviews        = 16             // concurrent reviews, limited because many agents may reconnect at once
	maxReviewsPerHost = maxReviews / 2 // concurrent reviews of unknown agents at one address
	maxKnownAgents    = 10_000         // size of the cache of known agents
	knownTimeout      = 15 * time.Second
	unknownTimeout    = 5 * time.Second
)

var errReviewQueue = errors.New("the token was not reviewed: too many reviews are in progress")

// reviewQueue limits concurrent token reviews. Agents that were admitted before have their own slots, so that
// other clients cannot delay them. An agent is recognized by its ID and address, because its token may have
// changed. The recognition only affects when the token is reviewed. A client that imitates the ID and address of
// an agent therefore only gets an earlier review.
type reviewQueue struct {
	knownAgents    *lru.Cache // by ID and address
	known, unknown reviewLimit

	mu    sync.Mutex
	hosts map[string]*hostReviews // by address
}

// hostReviews limits the reviews of unknown agents at one address, which many agents may share.
type hostReviews struct {
	reviewLimit
	waiting int // agents that wait or are being reviewed
}

// reviewLimit limits concurrent reviews. timeout limits the wait for a slot, and also the review itself.
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

// review waits for a slot for the agent with an ID at an address, and calls review. It returns the error of the
// review, or errReviewQueue if no slot was free in time.
func (q *reviewQueue) review(ctx context.Context, id, address string, review func(context.Context) error) error {
	key := id + " " + address
	if _, isKnown := q.knownAgents.Get(key); isKnown {
		return q.known.do(ctx, review)
	}
	host := q.enterHost(address)
	defer q.leaveHost(address)
	err := host.do(ctx, func(ctx context.Context) error { return q.unknown.do(ctx, review) })
	if err == nil {
		q.knownAgents.Add(key, nil)
	}
	return err
}

// enterHost returns the limit that all unknown agents of an address share. Each caller calls leaveHost at the end. The
// last call removes the limit.
func (q *reviewQueue) enterHost(address string) reviewLimit {
	q.mu.Lock()
	defer q.mu.Unlock()
	h := q.hosts[address]
	if h == nil {
		h = &hostReviews{reviewLimit: reviewLimit{make(chan struct{}, maxReviewsPerHost), unknownTimeout}}
		q.hosts[address] = h
	}
	h.waiting++
	return h.reviewLimit
}

func (q *reviewQueue) leaveHost(address string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	h := q.hosts[address]
	if h.waiting--; h.waiting == 0 {
		delete(q.hosts, address)
	}
}

// do waits for a slot and calls review.
func (l reviewLimit) do(ctx context.Context, review func(context.Context) error) error {
	waitCtx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-waitCtx.Done():
		return fmt.Errorf("%w: %w", errReviewQueue, waitCtx.Err())
	}
	ctx, cancel = context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return review(ctx)
}
