package access

import (
	"crypto/x509"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// CAPool holds the current CAs of a provider, against which client certificates are verified.
type CAPool struct {
	dynamiccertificates.CAContentProvider
	options atomic.Pointer[x509.VerifyOptions] // replaced when the CAs change; nil means there are no CAs
}

// NewCAPool returns a pool that follows the CAs of the provider.
func NewCAPool(provider dynamiccertificates.CAContentProvider) *CAPool {
	t := &CAPool{CAContentProvider: provider}
	provider.AddListener(t)
	t.Enqueue()
	return t
}

// Enqueue implements dynamiccertificates.Listener. It loads the provider's CAs again.
func (t *CAPool) Enqueue() {
	if o, ok := t.CAContentProvider.VerifyOptions(); ok {
		t.options.Store(&o)
	}
}

// verify reports whether a peer's certificate chain is valid for client authentication with the options o, and returns
// its expiry.
func verify(o *x509.VerifyOptions, peer []*x509.Certificate, now time.Time) (notAfter time.Time, ok bool) {
	if o == nil {
		return notAfter, false
	}
	options := *o
	options.CurrentTime = now
	if len(peer) > 1 {
		options.Intermediates = x509.NewCertPool()
		for _, c := range peer[1:] {
			options.Intermediates.AddCert(c)
		}
	}
	chains, err := peer[0].Verify(options)
	if err != nil {
		return notAfter, false
	}
	notAfter = peer[0].NotAfter
	for _, c := range chains[0] {
		if c.NotAfter.Before(notAfter) {
			notAfter = c.NotAfter
		}
	}
	return notAfter, true
}

// verifyOptions returns the current options, or nil if t is nil or has no CAs.
func (t *CAPool) verifyOptions() *x509.VerifyOptions {
	if t == nil {
		return nil
	}
	return t.options.Load()
}
