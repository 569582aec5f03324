package conversion

import (
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
// answers does not matter to it, as long as it answers. The zero value with a report lets everything through.
type breaker struct {
	report func(crd string, err error)

	mu       sync.Mutex
	failures int // without a success between them
	last     error
	probe    time.Time       // when the next call may go through, once there are enough failures
	told     map[string]bool // what was last reported of a CRD: that the webhook answers
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
	b.failures, b.last = 0, nil
	if answers, known := b.told[crd]; !known || !answers {
		b.tell(crd, nil)
	}
	for other, answers := range b.told {
		if !answers {
			b.tell(other, nil)
		}
	}
}

// failed notes that a call for a CRD could not be made.
func (b *breaker) failed(crd string, err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	b.last = err
	if b.failures < breakAfter {
		return
	}
	b.probe = now.Add(probeEvery)
	if answers, known := b.told[crd]; !known || answers {
		b.tell(crd, err)
	}
}

func (b *breaker) tell(crd string, err error) {
	if b.told == nil {
		b.told = map[string]bool{}
	}
	b.told[crd] = err == nil
	b.report(crd, err)
}
