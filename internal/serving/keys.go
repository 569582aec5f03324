package serving

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// RenewalCheck is how often a server looks whether its certificates are to be renewed, or have been by trellis certs. The
// former could be seldom, for they are renewed long before they end; it costs reading nine small files.
const RenewalCheck = time.Hour

// Keys are what a server has made for itself. Certificates show the newest.
type Keys struct {
	atomic.Pointer[pki.Bundle]
	shownBy *Certificates
}

// Make reads what is in dir, or makes it.
func (k *Keys) Make(c *Certificates, dir string, hosts []string, now time.Time) error {
	k.shownBy = c
	return k.use(pki.Ensure(dir, hosts, now))
}

// Renew replaces certificates that end soon.
func (k *Keys) Renew(now time.Time) error { return k.use(k.Load().Renew(now)) }

func (k *Keys) use(b *pki.Bundle, err error) error {
	if err == nil {
		k.Store(b)
		k.shownBy.SetOwn(&b.Serving)
	}
	return err
}

// Every is a loop that runs do again and again until ctx is done. The first period has begun when it is returned.
func Every(ctx context.Context, c clock.WithTicker, period time.Duration, do func()) (loop func()) {
	tick := c.NewTicker(period)
	return func() {
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C():
				do()
			}
		}
	}
}
