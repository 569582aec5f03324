package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	// lookEvery is how often the disk is looked at, and lookSoon while it is nearly full.
	lookEvery = 5 * time.Second
	lookSoon  = time.Second
	// beliefs is how often in a row damage must be found before it is believed.
	beliefs = 5
)

// keep opens a new engine whenever one has failed, and keeps an eye on the room there is,
// until Close.
func (l *disk) keep() {
	for {
		every := lookEvery
		if l.space.low() {
			every = lookSoon
		}
		e := l.engine()
		select {
		case <-l.life.Done():
			return
		case <-e.fatal:
			if !l.renew(e) {
				return
			}
		case <-l.pause(every):
		}
		l.look()
	}
}

// look sees how much room there is. While it is scarce, the history is to be short, and
// the engine gives back what the history no longer needs.
func (l *disk) look() {
	if !l.space.look() {
		return
	}
	select {
	case l.tight <- struct{}{}:
	default:
	}
	l.squeeze()
}

// admit refuses events that there is no room for.
func (l *disk) admit(events []*storage.Event) error {
	err := l.space.admit(events)
	if err != nil {
		select {
		case l.tight <- struct{}{}:
		default:
		}
	}
	return err
}

// renew puts another engine in the place of one that has failed; false if it is over.
func (l *disk) renew(failed *engine) bool {
	l.logger.Error("the disk failed a write; the store is opened again as soon as that is possible, and reads go on", "err", failed.cause)
	l.health.fail(errFailedWrite)
	if !l.fence(failed) {
		return false
	}
	damaged, wait := 0, l.pace.next()
	for {
		select {
		case <-l.life.Done():
			return false
		case <-l.pause(wait):
		}
		if wait = lookSoon; !l.space.enough(2 * int64(l.memTable)) {
			continue
		}
		next, err := l.reopen()
		if err == nil {
			l.logger.Warn("the store is open again", "revision", next.found.revision)
			l.install(next, nil)
			l.health.fail(nil)
			return true
		}
		wait = l.pace.next()
		l.logger.Error("the store could not be opened again", "err", err)
		var damage *DamageError
		if damaged++; !errors.As(err, &damage) {
			damaged = 0
		}
		if damaged == beliefs {
			l.install(failed, err)
			l.health.fail(err)
			return false
		}
	}
}

// pace says when to try. What an engine that failed has held is lost until the process ends,
// some MiB, so the more often it failed of late, the longer nothing is tried.
type pace struct {
	now   func() time.Time
	tries []time.Time
}

// next is how long to wait before one more try: 10 ms times the square of those of the last hour.
func (p *pace) next() time.Duration {
	now := p.now()
	p.tries = slices.DeleteFunc(p.tries, func(t time.Time) bool { return now.Sub(t) > time.Hour })
	n := time.Duration(len(p.tries))
	p.tries = append(p.tries, now)
	return n * n * 10 * time.Millisecond
}

// fence keeps an engine that has failed off the disk; false if the log is closed before.
func (l *disk) fence(failed *engine) bool {
	done := make(chan struct{})
	go func() { // the disk may stand still
		failed.fence.shut()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-l.life.Done():
		return false
	}
}

// install makes e the current engine. With an error, it stays the last one.
func (l *disk) install(e *engine, final error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current, l.final = e, final
	close(l.renewed)
	l.renewed = make(chan struct{})
}

// await returns the engine after one that has failed.
func (l *disk) await(ctx context.Context, failed *engine) (*engine, error) {
	for {
		l.mu.Lock()
		current, renewed, final := l.current, l.renewed, l.final
		l.mu.Unlock()
		switch {
		case final != nil:
			return nil, final
		case current != failed:
			return current, nil
		}
		select {
		case <-renewed:
		case <-ctx.Done():
			return nil, fmt.Errorf("closed before the store could be opened again: %w", failed.cause)
		}
	}
}

// reopen opens another engine, and makes sure that all that was acknowledged is there.
func (l *disk) reopen() (_ *engine, err error) {
	e := l.newEngine()
	defer func() {
		if err != nil {
			_ = e.close() // the first error says more
		}
	}()
	if err := e.open(); err != nil {
		return nil, err
	}
	_, newest, err := e.load(func(*storage.Record) error { return nil })
	if err != nil {
		return nil, err
	}
	e.found = newest.tally
	l.mu.Lock()
	durable, pending := l.durable, l.pending
	l.mu.Unlock()
	switch e.found {
	case durable:
		return e, nil
	case pending:
		return e, e.reading("the index", func() error { return e.passed(durable) })
	}
	return nil, l.damage(fmt.Sprintf("revision %d was written, and the log ends at %d", durable.revision, e.found.revision), nil)
}

// passed makes sure that the history went through t.
func (e *engine) passed(t tally) error {
	key := appendIndexKey(nil, t.revision)
	value, closer, err := e.db.Get(key)
	if err != nil {
		return e.damage(fmt.Sprintf("revision %d", t.revision), err)
	}
	defer closer.Close()
	c, err := decodeChange(slices.Clone(key), value)
	if err != nil || c.tally != t {
		return e.damage(fmt.Sprintf("revision %d is not what was written", t.revision), err)
	}
	return nil
}
