package access

import (
	"context"
	"crypto/x509"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// connection is what is known of the connection of a request.
type connection struct {
	atomic.Pointer[identity]             // of its certificate
	admitted                 atomic.Bool // a client has authenticated on it, and admit has agreed
	admit                    func() bool // nil: it always agrees
}

// authenticated notes that a client has authenticated on the connection. The error is that of a server with too many such connections.
func (c *connection) authenticated() error {
	if c == nil || c.admit == nil || c.admitted.Load() {
		return nil
	}
	if !c.admit() {
		const wait = 1 // seconds
		err := apierrors.NewServiceUnavailable("too many connections: the limit of open files of the server is reached, please try again later")
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: wait}
		return err
	}
	c.admitted.Store(true)
	return nil
}

// WithUser hands in the identity of a caller inside this process. Only requests that
// never came over a connection may carry it: it stands above every credential.
func WithUser(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, callerKey{}, u)
}

// ConnContext returns the context of the requests of a connection, with a place for its identity. It calls admit when a client first
// authenticates on the connection, and again as long as admit returns false; such requests are refused. nil admits all.
func ConnContext(ctx context.Context, admit func() bool) context.Context {
	return context.WithValue(ctx, callerKey{}, &connection{admit: admit})
}

// Authenticate returns the user, or a StatusError: 401, or 503 for one connection too many. A certificate is looked at before a token, and whoever has shown
// something that nobody believes is not anonymous. The identity of a client certificate is computed once a connection and
// believed until the certificate expires, or the CAs change.
func (a *Authenticator) Authenticate(r *http.Request) (user.Info, error) {
	known := r.Context().Value(callerKey{})
	if u, ok := known.(user.Info); ok {
		return u, nil
	}
	on, _ := known.(*connection)
	u, disbelieved := a.credentials(on, r)
	switch {
	case u != nil:
		if err := on.authenticated(); err != nil {
			return nil, err
		}
		return u, nil
	case !disbelieved:
		if u, ok := ask(a.Anonymous, r, &disbelieved); ok {
			return u, nil
		}
	}
	return nil, unauthorized()
}

// credentials returns the user that the credentials of a request prove, or nil. disbelieved reports that there are credentials which prove
// nothing.
func (a *Authenticator) credentials(on *connection, r *http.Request) (u user.Info, disbelieved bool) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		id := a.certificate(on, r.TLS.PeerCertificates)
		proxy := id.proxied && a.FrontProxy.named(r.TLS.PeerCertificates[0].Subject.CommonName)
		if proxy {
			if u, ok := ask(a.FrontProxy.Headers, r, &disbelieved); ok {
				return u, false
			}
		}
		switch {
		case id.proxied && !proxy: // of the front proxy's CA, but not of the front proxy
			return nil, true
		case id.user != nil:
			return id.user, false
		}
		disbelieved = disbelieved || id.disbelieved
	}
	u, _ = ask(a.Tokens, r, &disbelieved)
	return u, disbelieved
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
