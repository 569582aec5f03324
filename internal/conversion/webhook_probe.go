package conversion

import (
	"context"
	"time"
)

// A webhook that cannot be reached is looked for, so that it is known to be back without anybody's call: once a second a
// connection is opened and closed, with all of TLS and no request. That it is accepted tells that the webhook is back only
// where connections were refused before; one that takes them and does not answer is tried by calls alone.

// probe looks for the webhook until it is there, until no CRD that was told of its absence names it any longer, or until ctx
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
		sought, more := c.breaker.sought()
		if !more {
			return
		}
		for _, crd := range sought {
			c.webhooks.follow(crd, c)
		}
		c.breaker.probed(c.connect(ctx))
	}
}

// connect opens a connection and closes it.
func (c *caller) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeEvery)
	defer cancel()
	conn, err := c.line.Load().transport.NewClientConn(ctx, "https", c.address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// follow has a CRD that names another webhook than was's by now hear of that one.
func (w *Webhooks) follow(crd string, was *caller) {
	if w.config.Names == nil {
		return
	}
	text := w.config.Names(crd)
	if text == was.text {
		return
	}
	was.breaker.forget(crd)
	w.suspect(crd, text)
}

// Suspect is for a CRD that says, since before there were these Webhooks, that its webhook cannot be reached: that is looked
// for until it is there. It is not called.
func (w *Webhooks) Suspect(crd string) {
	if w.config.Names != nil {
		w.suspect(crd, w.config.Names(crd))
	}
}

func (w *Webhooks) suspect(crd, text string) {
	if text == "" {
		w.said.forget(crd)
		return
	}
	if now, err := w.caller(text); err == nil {
		now.breaker.suspect(crd)
	}
}
