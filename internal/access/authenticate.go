package access

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Authentication says whom an Authenticator believes; what is left out, nobody.
type Authentication struct {
	ClientCAs  *Trust                // who signs the certificates of users
	FrontProxy *FrontProxy           // whose headers say who sends a request
	Tokens     authenticator.Request // for what else a request may bear
	Anonymous  authenticator.Request // for a request without credentials
	Now        func() time.Time
}

// FrontProxy is who authenticates users in our place
// (https://kubernetes.io/docs/reference/access-authn-authz/authentication/#authenticating-proxy).
type FrontProxy struct {
	CAs     *Trust                // who signs its certificate
	Names   func() []string       // that its certificate may have; none: any
	Headers authenticator.Request // reads the user from the headers
}

// named says whether a certificate of that name is the proxy's.
func (p *FrontProxy) named(commonName string) bool {
	names := p.Names()
	return len(names) == 0 || slices.Contains(names, commonName)
}

// Authenticator finds out who sent a request.
type Authenticator struct{ Authentication }

// NewAuthenticator believes whom the Authentication says.
func NewAuthenticator(a Authentication) *Authenticator { return &Authenticator{a} }

// callerKey is where the context of a request has what is known of the caller before it is authenticated: who it is, or
// the place at its connection where that is kept.
type callerKey struct{}

type connection = atomic.Pointer[identity]

// WithUser hands in the identity of a caller inside this process. Only requests that
// never came over a connection may carry it: it stands above every credential.
func WithUser(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, callerKey{}, u)
}

// ConnContext gives a connection a place to keep its identity; it is for
// http.Server.ConnContext.
func ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, callerKey{}, new(connection))
}

// Authenticate returns the user, or a 401 StatusError. A certificate is looked at before a token, and whoever has shown
// something that nobody believes is not anonymous. The identity of a client certificate is computed once a connection and
// believed until the certificate expires, or the CAs change.
func (a *Authenticator) Authenticate(r *http.Request) (user.Info, error) {
	known := r.Context().Value(callerKey{})
	if u, ok := known.(user.Info); ok {
		return u, nil
	}
	disbelieved := false
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		slot, _ := known.(*connection)
		id := a.certificate(slot, r.TLS.PeerCertificates)
		proxy := id.proxied && a.FrontProxy.named(r.TLS.PeerCertificates[0].Subject.CommonName)
		if proxy {
			if u, ok := ask(a.FrontProxy.Headers, r, &disbelieved); ok {
				return u, nil
			}
		}
		switch {
		case id.proxied && !proxy: // of the front proxy's CA, but not of the front proxy
			return nil, unauthorized()
		case id.user != nil:
			return id.user, nil
		}
		disbelieved = disbelieved || id.disbelieved
	}
	if u, ok := ask(a.Tokens, r, &disbelieved); ok {
		return u, nil
	}
	if !disbelieved {
		if u, ok := ask(a.Anonymous, r, &disbelieved); ok {
			return u, nil
		}
	}
	return nil, unauthorized()
}

// ask is who sent r as one authenticator, which may be nil, sees it.
func ask(a authenticator.Request, r *http.Request, disbelieved *bool) (user.Info, bool) {
	if a == nil {
		return nil, false
	}
	response, ok, err := a.AuthenticateRequest(r)
	if err != nil {
		*disbelieved = true
	}
	if err != nil || !ok {
		return nil, false
	}
	return response.User, true
}

func unauthorized() error { return apierrors.NewUnauthorized("Unauthorized") }

// identity is what a client certificate says, and as long as what it may be believed.
type identity struct {
	user        user.Info // nil: the certificate names nobody
	proxied     bool      // it is of the front proxy's CA
	disbelieved bool      // it is of no CA, or says what it may not

	until            time.Time
	clients, proxies *x509.VerifyOptions // by which that was found
}

// certificate says whose certificate it is. slot is where the connection keeps that, nil if it has no place.
func (a *Authenticator) certificate(slot *connection, peer []*x509.Certificate) *identity {
	now := a.Now()
	clients, proxies := a.ClientCAs.current(), (*x509.VerifyOptions)(nil)
	if a.FrontProxy != nil {
		proxies = a.FrontProxy.CAs.current()
	}
	if slot != nil {
		if id := slot.Load(); id != nil && now.Before(id.until) && id.clients == clients && id.proxies == proxies {
			return id
		}
	}
	id := &identity{clients: clients, proxies: proxies}
	a.identify(id, peer, now)
	if slot != nil && (id.proxied || !id.disbelieved) {
		slot.Store(id)
	}
	return id
}

// identify looks at the front proxy's CAs first. Who has a certificate of these and is not the front proxy is refused, even if a CA of users is
// among them (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/#ca-reusage-and-conflicts).
func (a *Authenticator) identify(id *identity, peer []*x509.Certificate, now time.Time) {
	until, proxied := verify(id.proxies, peer, now)
	if proxied {
		id.proxied, id.until = true, until
	}
	until, ok := verify(id.clients, peer, now)
	if !ok {
		id.disbelieved = id.clients != nil
		return
	}
	if !proxied || until.Before(id.until) {
		id.until = until
	}
	id.user, id.disbelieved = subject(peer[0])
	if id.user == nil && id.proxies != nil && !proxied {
		id.disbelieved = true // as upstream: it has been shown to both, and to one in vain
	}
}
