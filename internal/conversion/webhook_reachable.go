package conversion

import (
	"context"
	"maps"
	"sync"
	"time"
)

// probeEvery is how often a connection is tried to a webhook that cannot be reached, so that it is known to be back without
// anybody's call.
const probeEvery = time.Second

// reachability knows of each CRD whether its webhook can be reached, and reports what is news.
type reachability struct {
	report func(crd string, err error)

	mu      sync.Mutex
	crds    map[string]verdict
	probing map[*caller]bool
}

// verdict is what is known of the webhook of a CRD.
type verdict struct {
	by      *caller
	told    bool // it was reported; else the CRD has been left to say that its webhook cannot be reached
	answers bool
}

// called notes how a call for a CRD has gone. A webhook whose circuit breaker is closed is no news if it fails.
func (r *reachability) called(c *caller, crd string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch open := c.transport.Err() != nil; {
	case err != nil && open:
		r.say(crd, verdict{by: c, told: true}, err)
		r.probe(c)
	case err == nil && !open:
		r.say(crd, verdict{c, true, true}, nil)
		if r.probing[c] { // others wait for it
			r.found(c)
		}
	}
}

func (r *reachability) say(crd string, now verdict, err error) {
	if r.crds[crd] != now {
		r.crds[crd] = now
		r.report(crd, err)
	}
}

// suspect has the webhook of a CRD probed, which is not called.
func (r *reachability) suspect(c *caller, crd string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.crds[crd].by == c {
		return // it is known better
	}
	if err := c.transport.Err(); err != nil {
		r.say(crd, verdict{by: c, told: true}, err)
	} else {
		r.crds[crd] = verdict{by: c}
		c.transport.HalfOpen()
	}
	r.probe(c)
}

func (r *reachability) probe(c *caller) {
	if !r.probing[c] {
		r.probing[c] = true
		go c.probe(c.webhooks.ended)
	}
}

// found reports that a webhook is there to all CRDs that name it.
func (r *reachability) found(c *caller) {
	for crd, v := range r.crds {
		if v.by == c {
			r.say(crd, verdict{c, true, true}, nil)
		}
	}
}

// waiting returns the CRDs that wait for a webhook. Without one the probing is over.
func (r *reachability) waiting(c *caller) (crds []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for crd, v := range r.crds {
		if v.by == c && !v.answers {
			crds = append(crds, crd)
		}
	}
	if len(crds) == 0 {
		delete(r.probing, c)
	}
	return crds
}

// forget is for a CRD that names another webhook than was's, or none.
func (r *reachability) forget(crd string, was *caller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.crds[crd].by == was {
		delete(r.crds, crd)
	}
}

// drop forgets what was reported of a webhook that nobody uses, unless it is being probed.
func (r *reachability) drop(c *caller) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.probing[c] {
		return false
	}
	maps.DeleteFunc(r.crds, func(_ string, v verdict) bool { return v.by == c })
	return true
}

// probe tries connections until the webhook can be reached, until no CRD that waits for it names it any longer, or until ctx
// is done.
func (c *caller) probe(ctx context.Context) {
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		crds := c.webhooks.reach.waiting(c)
		if len(crds) == 0 {
			return
		}
		for _, crd := range crds {
			c.webhooks.follow(crd, c)
		}
		if c.transport.Probe(ctx) {
			c.webhooks.reach.back(c)
		}
	}
}

// back notes that a webhook accepts connections again.
func (r *reachability) back(c *caller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.transport.Err() == nil {
		r.found(c)
	}
}

// HalfOpen is for a CRD that says, since before there were these Webhooks, that its webhook cannot be reached: that is probed
// until it can be. It is not called.
func (w *Webhooks) HalfOpen(crd string) { w.follow(crd, nil) }

// follow has a CRD that names another webhook than was's by now hear of that one.
func (w *Webhooks) follow(crd string, was *caller) {
	if w.config.WebhookOf == nil {
		return
	}
	text := w.config.WebhookOf(crd)
	if was != nil && text == was.text {
		return
	}
	w.reach.forget(crd, was)
	if text == "" {
		w.config.Report(crd, nil)
	} else if now, err := w.caller(text); err == nil {
		w.reach.suspect(now, crd)
	}
}
