package conversion

import (
	"context"
	"maps"
	"sync"
	"time"
)

// probeEvery is the interval of connection attempts to an unreachable webhook. The attempts detect that the webhook
// is reachable again, so no call has to be made for that.
const probeEvery = time.Second

// reachability tracks for each CRD whether its webhook is reachable, and reports changes.
type reachability struct {
	report      func(crd string, err error)
	unavailable func(crd string) bool

	mu      sync.Mutex
	crds    map[string]webhookState
	probing map[*webhookClient]bool
}

// webhookState is the known state of the webhook of a CRD.
type webhookState struct {
	client    *webhookClient
	reported  bool // if false, the CRD still has an unreachable condition from an earlier process
	reachable bool
}

// recordCall records the result of a call for a CRD. A failure counts only if it has opened the circuit breaker of
// the webhook.
func (r *reachability) recordCall(c *webhookClient, crd string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch open := c.transport.Err() != nil; {
	case err != nil && open:
		r.setState(crd, webhookState{client: c, reported: true}, err)
		r.probe(c)
	case err == nil && !open:
		if now := (webhookState{c, true, true}); r.crds[crd] != now {
			r.setState(crd, now, nil)
		} else if r.unavailable(crd) {
			r.report(crd, nil)
		}
		if r.probing[c] { // other CRDs with this webhook have the state unreachable
			r.markReachable(c)
		}
	}
}

// setState stores the state of the webhook of a CRD, and reports it if it has changed.
func (r *reachability) setState(crd string, now webhookState, err error) {
	if r.crds[crd] != now {
		r.crds[crd] = now
		r.report(crd, err)
	}
}

// halfOpen starts probing the webhook of a CRD. It does not call the webhook.
func (r *reachability) halfOpen(c *webhookClient, crd string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.crds[crd].client == c {
		return // the state of this webhook is known
	}
	if err := c.transport.Err(); err != nil {
		r.setState(crd, webhookState{client: c, reported: true}, err)
	} else {
		r.crds[crd] = webhookState{client: c}
		c.transport.HalfOpen()
	}
	r.probe(c)
}

func (r *reachability) probe(c *webhookClient) {
	if !r.probing[c] {
		r.probing[c] = true
		go c.probe(c.webhooks.done)
	}
}

// markReachable reports the webhook as reachable for each CRD that uses it.
func (r *reachability) markReachable(c *webhookClient) {
	for crd, v := range r.crds {
		if v.client == c {
			r.setState(crd, webhookState{c, true, true}, nil)
		}
	}
}

// unreachableCRDs returns the CRDs that use the webhook of client c, if the webhook is unreachable for them. If there
// are none, it records that probing has ended.
func (r *reachability) unreachableCRDs(c *webhookClient) (crds []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for crd, v := range r.crds {
		if v.client == c && !v.reachable {
			crds = append(crds, crd)
		}
	}
	if len(crds) == 0 {
		delete(r.probing, c)
	}
	return crds
}

// forget removes the state of a CRD that no longer uses the webhook of the given client.
func (r *reachability) forget(crd string, c *webhookClient) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.crds[crd].client == c {
		delete(r.crds, crd)
	}
}

// dropUnused removes the state of an unused webhook and returns true. If the webhook is being probed, it does nothing
// and returns false.
func (r *reachability) dropUnused(c *webhookClient) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.probing[c] {
		return false
	}
	maps.DeleteFunc(r.crds, func(_ string, v webhookState) bool { return v.client == c })
	return true
}

// probe tries to connect once per interval. It ends when the webhook is reachable, when no CRD uses the webhook any
// longer, or when ctx is done.
func (c *webhookClient) probe(ctx context.Context) {
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		crds := c.webhooks.reach.unreachableCRDs(c)
		if len(crds) == 0 {
			return
		}
		for _, crd := range crds {
			c.webhooks.updateWebhook(crd, c)
		}
		if c.transport.Probe(ctx) {
			c.webhooks.reach.recordConnection(c)
		}
	}
}

// recordConnection records that a webhook accepts connections again.
func (r *reachability) recordConnection(c *webhookClient) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.transport.Err() == nil {
		r.markReachable(c)
	}
}

// HalfOpen starts probing the webhook of a CRD that an earlier process reported as unreachable. It does not call
// the webhook.
func (w *Webhooks) HalfOpen(crd string) { w.updateWebhook(crd, nil) }

// updateWebhook updates the state of a CRD if it no longer uses the webhook of the given client.
func (w *Webhooks) updateWebhook(crd string, old *webhookClient) {
	if w.config.WebhookOf == nil {
		return
	}
	text := w.config.WebhookOf(crd)
	if old != nil && text == old.text {
		return
	}
	w.reach.forget(crd, old)
	if text == "" {
		w.config.Report(crd, nil)
	} else if now, err := w.clientFor(text); err == nil {
		w.reach.halfOpen(now, crd)
	}
}
