package serving

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// RenewalCheck is the interval at which a server checks whether its certificates must be renewed, or have been renewed
// by trellis certs. A check reads nine small files. It would be enough to check for renewal less often, because
// certificates are renewed long before they expire.
const RenewalCheck = time.Hour

// Keys holds the keys and certificates that a server has created. It passes the newest certificate to Certificates.
type Keys struct {
	atomic.Pointer[pki.Bundle]
	certificates *Certificates
}

// Make reads the files in dir, or creates them.
func (k *Keys) Make(c *Certificates, dir string, hosts []string, now time.Time) error {
	k.certificates = c
	return k.use(pki.Ensure(dir, hosts, now))
}

// Renew replaces certificates that expire soon.
func (k *Keys) Renew(now time.Time) error { return k.use(k.Load().Renew(now)) }

func (k *Keys) use(b *pki.Bundle, err error) error {
	if err == nil {
		k.Store(b)
		k.certificates.SetOwn(&b.Serving)
	}
	return err
}

// Every returns a loop that calls do in each period until ctx is done. The first period starts when Every is called.
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
