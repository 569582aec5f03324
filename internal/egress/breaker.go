package egress

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// tripAfter is the number of consecutive failures after which the circuit breaker opens.
	tripAfter = 5
	// openFor is how long the circuit breaker stays open and rejects all requests. It is half-open afterwards: it
	// admits one request at a time.
	openFor = time.Second
)

// errExcluded is the outcome of a request that counts neither as a success nor as a failure of its destination.
var errExcluded = errors.New("request abandoned by the caller")

// breaker is a circuit breaker. While it is open, requests fail with the last error of the destination. A
// successful probe can close it.
type breaker struct {
	circuit atomic.Pointer[gobreaker.TwoStepCircuitBreaker[struct{}]]
	lastErr atomic.Pointer[error] // the last failure
	// unreachable is true after a failed attempt to connect, until the breaker closes. While it is true, a
	// successful probe closes the breaker.
	unreachable atomic.Bool
	// tripOnFirst is true if a single failure opens the breaker. HalfOpen sets it, and the first response clears
	// it.
	tripOnFirst atomic.Bool
}

// reset closes the breaker. The outcomes of requests in flight are no longer counted.
func (b *breaker) reset() {
	b.unreachable.Store(false)
	b.circuit.Store(gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout: openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= tripAfter || c.ConsecutiveFailures > 0 && b.tripOnFirst.Load()
		},
		IsExcluded: func(err error) bool { return err == errExcluded },
	}))
}

// state returns whether the breaker is closed, open or half-open.
func (b *breaker) state() gobreaker.State { return b.circuit.Load().State() }

// err returns the error with which requests fail, or nil while the breaker is closed.
func (b *breaker) err() error {
	if b.state() == gobreaker.StateClosed {
		return nil
	}
	return *b.lastErr.Load() // set by the failure that opened the breaker
}

// allow returns a callback to report the outcome, or an error if the breaker rejects the request.
func (b *breaker) allow() (done func(error), err error) {
	if done, err = b.circuit.Load().Allow(); err != nil {
		return nil, *b.lastErr.Load()
	}
	return done, nil
}

// succeeded records that the destination responded.
func (b *breaker) succeeded(done func(error)) {
	b.tripOnFirst.Store(false)
	done(nil)
	if b.state() == gobreaker.StateClosed {
		b.unreachable.Store(false)
	}
}

// failed records that the request failed. connected reports whether the request had a connection.
func (b *breaker) failed(done func(error), err error, connected bool) {
	b.lastErr.Store(&err)
	if !connected {
		b.unreachable.Store(true)
	}
	done(err)
}

// probed records the result of an attempt to connect. A success closes the breaker if the destination was
// unreachable before. recovered reports whether the breaker was closed in this way.
func (b *breaker) probed(err error) (recovered bool) {
	if err != nil {
		b.unreachable.Store(true)
		return false
	}
	if recovered = b.unreachable.Load(); recovered {
		b.reset()
	}
	return recovered
}
