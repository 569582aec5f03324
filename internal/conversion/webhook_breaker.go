package conversion

import (
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// breakAfter failures of the connection, one after the other, calls fail at once
	breakAfter = 5
	// but for one in each probeEvery, which finds out whether the webhook is there again.
	probeEvery = time.Second
)

// breaker remembers whether a webhook can be reached, so that requests do not wait for one that is dead. What a webhook
// answers does not matter to it, as long as it answers. The zero value with say and search lets everything through.
type breaker struct {
	// say is told of a CRD, for each call, whether its webhook can be reached.
	say func(crd string, err error)
	// search starts what calls sought and probed, again and again until sought says that there is no more to do.
	search func()

	mu        sync.Mutex
	failures  int // without a success between them
	last      error
	probe     time.Time       // when the next call may go through, once there are enough failures
	missing   map[string]bool // the CRDs that were told that the webhook cannot be reached
	searching bool
	refused   bool // not even a connection came to be, so that one that does is news
}

// refuse returns the error of a call that is not worth making, nil for one that is.
func (b *breaker) refuse(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < breakAfter {
		return nil
	}
	if now.Before(b.probe) {
		return b.last
	}
	b.probe = now.Add(probeEvery)
	return nil
}

// reached notes that the webhook has answered a call for a CRD.
func (b *breaker) reached(crd string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.missing, crd)
	b.say(crd, nil)
	b.close()
}

// close lets everything through again.
func (b *breaker) close() {
	b.failures, b.last, b.refused = 0, nil, false
	for crd := range b.missing {
		b.say(crd, nil)
	}
	clear(b.missing)
}

// failed notes that a call for a CRD could not be made; connected says that there was a connection for it.
func (b *breaker) failed(crd string, err error, connected bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	b.last = err
	b.refused = b.refused || !connected
	if b.failures < breakAfter {
		return
	}
	b.probe = now.Add(probeEvery)
	b.seek(crd)
	b.say(crd, err)
}

// suspect notes that the webhook of a CRD could not be reached when the CRD named another one, or when another process ran.
func (b *breaker) suspect(crd string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seek(crd)
	if b.failures >= breakAfter {
		b.say(crd, b.last)
	} else {
		b.refused = true // a connection is news
	}
}

func (b *breaker) seek(crd string) {
	if b.missing == nil {
		b.missing = map[string]bool{}
	}
	b.missing[crd] = true
	if !b.searching {
		b.searching = true
		b.search()
	}
}

// probed notes whether a connection came to be.
func (b *breaker) probed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.refused = true
	} else if b.refused {
		b.close()
	}
}

// sought returns the CRDs that wait for the webhook. Without one the search is over.
func (b *breaker) sought() (crds []string, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.searching = len(b.missing) > 0
	return slices.Collect(maps.Keys(b.missing)), b.searching
}

// forget has a CRD wait no longer.
func (b *breaker) forget(crd string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.missing, crd)
}

// idle reports that nobody searches.
func (b *breaker) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.searching
}

// verdicts passes on what is news of what breakers say.
type verdicts struct {
	report func(crd string, err error)

	mu   sync.Mutex
	last map[string]verdict // by CRD
}

type verdict struct {
	by      *breaker
	answers bool
}

func (v *verdicts) say(by *breaker, crd string, err error) {
	now := verdict{by, err == nil}
	v.mu.Lock()
	defer v.mu.Unlock()
	if last, known := v.last[crd]; !known || last != now {
		v.last[crd] = now
		v.report(crd, err)
	}
}

// drop forgets what a breaker has said that is there no longer.
func (v *verdicts) drop(by *breaker) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.last, func(_ string, last verdict) bool { return last.by == by })
}

// forget is for a CRD that names no webhook any longer.
func (v *verdicts) forget(crd string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.last, crd)
	v.report(crd, nil)
}
