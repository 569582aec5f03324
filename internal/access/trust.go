package access

import (
	"crypto/x509"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// Trust is in the certificates of clients that chain to the CAs of a provider, as these are at the moment.
type Trust struct {
	dynamiccertificates.CAContentProvider
	options atomic.Pointer[x509.VerifyOptions] // another one when the CAs have changed; nil: there are none
}

// NewTrust follows what the provider says.
func NewTrust(provider dynamiccertificates.CAContentProvider) *Trust {
	t := &Trust{CAContentProvider: provider}
	provider.AddListener(t)
	t.Enqueue()
	return t
}

// Enqueue implements dynamiccertificates.Listener: the CAs may have changed.
func (t *Trust) Enqueue() {
	if o, ok := t.CAContentProvider.VerifyOptions(); ok {
		t.options.Store(&o)
	}
}

// verify checks that the chain is of a CA of o, for use by a client, and says until when it is.
func verify(o *x509.VerifyOptions, peer []*x509.Certificate, now time.Time) (until time.Time, ok bool) {
	if o == nil {
		return until, false
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
		return until, false
	}
	until = peer[0].NotAfter
	for _, c := range chains[0] {
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
	}
	return until, true
}

// current is what to verify by; nil: nobody is trusted. t may be nil.
func (t *Trust) current() *x509.VerifyOptions {
	if t == nil {
		return nil
	}
	return t.options.Load()
}
