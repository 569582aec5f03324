package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
)

const (
	// checkInterval is the interval between checks of the disk space. lowSpaceInterval applies while space is low.
	checkInterval    = 5 * time.Second
	lowSpaceInterval = time.Second
	// damageAttempts is the number of consecutive attempts to open an engine that must find damage before it is
	// reported.
	damageAttempts = 5
)

// monitor replaces failed engines and checks the disk space, until Close.
func (l *disk) monitor() {
	for {
		every := checkInterval
		if l.space.low() {
			every = lowSpaceInterval
		}
		e := l.engine()
		select {
		case <-l.lifetime.Done():
			return
		case <-e.Failed():
			if !l.replaceEngine(e) {
				return
			}
		case <-l.After(every):
		}
		l.checkSpace()
	}
}

// checkSpace checks the disk space. While it is low, checkSpace signals lowSpace and compacts the engine's files.
func (l *disk) checkSpace() {
	if !l.space.check() {
		return
	}
	notify(l.lowSpace)
	l.compactFiles()
}

// admit returns an ErrNoSpace for events that do not fit on the disk.
func (l *disk) admit(events []*storage.Event) error {
	err := l.space.admit(events)
	if err != nil {
		notify(l.lowSpace)
	}
	return err
}

// replaceEngine opens engines until one replaces the failed one. It returns false after Close or on permanent
// damage.
func (l *disk) replaceEngine(failed *engine.Engine) bool {
	l.Logger.Error("a write to the disk has failed: reads continue, and writes continue after the store is reopened",
		"err", failed.Failure())
	l.health.setFailed(errFailedWrite)
	if !l.shutBarrier(failed) {
		return false
	}
	damaged, wait := 0, l.backoff.next()
	for {
		select {
		case <-l.lifetime.Done():
			return false
		case <-l.After(wait):
		}
		if wait = lowSpaceInterval; !l.space.hasFree(2 * int64(l.MemTable)) {
			continue
		}
		next, err := l.reopen()
		if err == nil {
			l.Logger.Warn("the store has been reopened", "revision", next.Found.Revision)
			l.install(next, nil)
			l.health.setFailed(nil)
			return true
		}
		wait = l.backoff.next()
		l.Logger.Error("cannot reopen the store", "err", err)
		var damage *engine.DamageError
		if damaged++; !errors.As(err, &damage) {
			damaged = 0
		}
		if damaged == damageAttempts {
			l.install(failed, err)
			l.health.setFailed(err)
			return false
		}
	}
}

// backoff delays attempts to open an engine. A failed engine leaks several MiB until the process ends, so each
// failure within an hour increases the delay.
type backoff struct {
	now      func() time.Time
	attempts []time.Time
}

// next returns the delay before the next attempt: 10 ms times the square of the attempts in the last hour.
func (p *backoff) next() time.Duration {
	now := p.now()
	p.attempts = slices.DeleteFunc(p.attempts, func(t time.Time) bool { return now.Sub(t) > time.Hour })
	n := time.Duration(len(p.attempts))
	p.attempts = append(p.attempts, now)
	return n * n * 10 * time.Millisecond
}

// shutBarrier ends all use of the disk by a failed engine. It returns false if the log is closed first.
func (l *disk) shutBarrier(failed *engine.Engine) bool {
	done := make(chan struct{})
	go func() { // a pending write may block
		failed.Shut()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-l.lifetime.Done():
		return false
	}
}

// install makes e the current engine. If finalErr is not nil, no other engine follows e.
func (l *disk) install(e *engine.Engine, finalErr error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current, l.finalErr = e, finalErr
	close(l.replaced)
	l.replaced = make(chan struct{})
}

// await returns the engine that replaces a failed one.
func (l *disk) await(ctx context.Context, failed *engine.Engine) (*engine.Engine, error) {
	for {
		l.mu.Lock()
		current, replaced, finalErr := l.current, l.replaced, l.finalErr
		l.mu.Unlock()
		switch {
		case finalErr != nil:
			return nil, finalErr
		case current != failed:
			return current, nil
		}
		select {
		case <-replaced:
		case <-ctx.Done():
			return nil, fmt.Errorf("the store was closed before it could be reopened: %w", failed.Failure())
		}
	}
}

// reopen opens another engine and checks that it contains all acknowledged revisions.
func (l *disk) reopen() (_ *engine.Engine, err error) {
	e := engine.New(l.Config)
	defer func() {
		if err != nil {
			_ = e.Close() // the first error is more specific
		}
	}()
	if err := e.Open(); err != nil {
		return nil, err
	}
	_, newest, err := e.Load(func(*storage.Record) error { return nil })
	if err != nil {
		return nil, err
	}
	e.Found = newest.Tally
	l.mu.Lock()
	durable, pending := l.durable, l.pending
	l.mu.Unlock()
	switch e.Found {
	case durable:
		return e, nil
	case pending:
		return e, e.Read("the index", func() error { return e.CheckContains(durable) })
	}
	return nil, l.damage(fmt.Sprintf("the log ends at revision %d, but revision %d was written",
		e.Found.Revision, durable.Revision), nil)
}
