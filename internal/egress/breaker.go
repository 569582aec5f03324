package egress

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// tripAfter failures in a row the circuit breaker opens:
	tripAfter = 5
	// requests fail at once, until openFor has passed. Then it is half-open: one request at a time goes through.
	openFor = time.Second
)

// errNoVerdict ends a request that has shown nothing of its destination.
var errNoVerdict = errors.New("given up by this side")

// breaker is a circuit breaker that says why it is open, and that a probe can close.
type breaker struct {
	circuit atomic.Pointer[gobreaker.TwoStepCircuitBreaker[struct{}]]
	last    atomic.Pointer[error] // failure
	refused atomic.Bool           // since it was closed, not even a connection came to be: one that does is news
	suspect atomic.Bool           // nothing has been answered since somebody said that it could not be reached: one failure is enough
}

// reset closes it. Requests under way count no longer.
func (b *breaker) reset() {
	b.refused.Store(false)
	b.circuit.Store(gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout: openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= tripAfter || c.ConsecutiveFailures > 0 && b.suspect.Load()
		},
		IsExcluded: func(err error) bool { return err == errNoVerdict },
	}))
}

// state is closed, open or half-open.
func (b *breaker) state() gobreaker.State { return b.circuit.Load().State() }

// err is why requests fail at once; nil while it is closed.
func (b *breaker) err() error {
	if b.state() == gobreaker.StateClosed {
		return nil
	}
	return *b.last.Load() // it has opened for one
}

// allow returns what is to be told how a request has ended, or why there can be none.
func (b *breaker) allow() (done func(error), err error) {
	if done, err = b.circuit.Load().Allow(); err != nil {
		return nil, *b.last.Load()
	}
	return done, nil
}

// succeeded tells that the destination has answered.
func (b *breaker) succeeded(done func(error)) {
	b.suspect.Store(false)
	done(nil)
	if b.state() == gobreaker.StateClosed {
		b.refused.Store(false)
	}
}

// failed tells that it has not; connected says that there was a connection.
func (b *breaker) failed(done func(error), err error, connected bool) {
	b.last.Store(&err)
	if !connected {
		b.refused.Store(true)
	}
	done(err)
}

// probed tells whether a connection came to be. That closes the breaker where connections were refused before; back says so.
func (b *breaker) probed(err error) (back bool) {
	if err != nil {
		b.refused.Store(true)
		return false
	}
	if back = b.refused.Load(); back {
		b.reset()
	}
	return back
}
