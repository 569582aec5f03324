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

// Authentication configures an Authenticator. A nil field disables its method of authentication.
type Authentication struct {
	ClientCAs  *CAPool               // CAs that sign users' client certificates
	FrontProxy *FrontProxy           // the authenticating proxy
	Tokens     authenticator.Request // authenticates all other credentials of a request
	Anonymous  authenticator.Request // authenticates requests without credentials
	Now        func() time.Time      // required
}

// FrontProxy describes an authenticating proxy, which passes the user in headers
// (https://kubernetes.io/docs/reference/access-authn-authz/authentication/#authenticating-proxy).
type FrontProxy struct {
	CAs     *CAPool               // CAs that sign the proxy's client certificate
	Names   func() []string       // allowed common names of the certificate; an empty list allows all
	Headers authenticator.Request // reads the user from the headers
}

// allows reports whether the proxy may have a certificate with this common name.
func (p *FrontProxy) allows(commonName string) bool {
	names := p.Names()
	return len(names) == 0 || slices.Contains(names, commonName)
}

// Authenticator authenticates the sender of a request.
type Authenticator struct{ Authentication }

// NewAuthenticator returns an Authenticator with the given configuration.
func NewAuthenticator(a Authentication) *Authenticator { return &Authenticator{a} }

// callerKey is the context key of the caller. The value is a user.Info for callers inside this process, or the
// *connection of the request.
type callerKey struct{}

// connection holds the authentication state of one connection.
type connection struct {
	atomic.Pointer[identity]             // the cached identity of the client certificate
	admitted                 atomic.Bool // true once a client has authenticated and admit has returned true
	admit                    func() bool // nil admits all
}

// markAuthenticated records that a client has authenticated on the connection. It returns a 503 StatusError if the
// server has too many authenticated connections.
func (c *connection) markAuthenticated() error {
	if c == nil || c.admit == nil || c.admitted.Load() {
		return nil
	}
	if !c.admit() {
		const wait = 1 // seconds
		err := apierrors.NewServiceUnavailable(
			"too many connections: the server has reached its limit of open files, please try again later")
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: wait}
		return err
	}
	c.admitted.Store(true)
	return nil
}

// WithUser returns a context with the identity of a caller inside this process. The identity overrides all
// credentials. A request that came over a connection must not have such a context.
func WithUser(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, callerKey{}, u)
}

// ConnContext returns the context for the requests of a connection. The context caches the identity of the
// connection's client certificate. Authenticate calls admit when it first authenticates a client on the connection. If
// admit returns false, the request is rejected, and the next request calls admit again. A nil admit admits all
// connections.
func ConnContext(ctx context.Context, admit func() bool) context.Context {
	return context.WithValue(ctx, callerKey{}, &connection{admit: admit})
}

// Authenticate returns the user of a request, or a StatusError: 401, or 503 if there are too many connections. Client
// certificates take precedence over tokens. Invalid credentials get 401. They never fall back to anonymous. The
// identity of a client certificate is cached for the connection until the certificate expires or the CAs change.
func (a *Authenticator) Authenticate(r *http.Request) (user.Info, error) {
	known := r.Context().Value(callerKey{})
	if u, ok := known.(user.Info); ok {
		return u, nil
	}
	conn, _ := known.(*connection)
	u, invalid := a.credentials(conn, r)
	switch {
	case u != nil:
		if err := conn.markAuthenticated(); err != nil {
			return nil, err
		}
		return u, nil
	case !invalid:
		if u, ok := authenticateBy(a.Anonymous, r, &invalid); ok {
			return u, nil
		}
	}
	return nil, unauthorized()
}

// credentials returns the user that the credentials of a request prove, or nil. invalid reports that the request has
// credentials that prove no user.
func (a *Authenticator) credentials(conn *connection, r *http.Request) (u user.Info, invalid bool) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		id := a.certificate(conn, r.TLS.PeerCertificates)
		proxy := id.byProxyCA && a.FrontProxy.allows(r.TLS.PeerCertificates[0].Subject.CommonName)
		if proxy {
			if u, ok := authenticateBy(a.FrontProxy.Headers, r, &invalid); ok {
				return u, false
			}
		}
		switch {
		case id.byProxyCA && !proxy: // another client with a certificate of the front proxy's CA
			return nil, true
		case id.user != nil:
			return id.user, false
		}
		invalid = invalid || id.invalid
	}
	u, _ = authenticateBy(a.Tokens, r, &invalid)
	return u, invalid
}

// authenticateBy returns the user that an authenticator finds in r. It sets *invalid if the authenticator returns an
// error. A nil authenticator finds no user.
func authenticateBy(a authenticator.Request, r *http.Request, invalid *bool) (user.Info, bool) {
	if a == nil {
		return nil, false
	}
	response, ok, err := a.AuthenticateRequest(r)
	if err != nil {
		*invalid = true
	}
	if err != nil || !ok {
		return nil, false
	}
	return response.User, true
}

func unauthorized() error { return apierrors.NewUnauthorized("Unauthorized") }

// identity is the result of verifying a client certificate.
type identity struct {
	user      user.Info // nil if the certificate identifies no user
	byProxyCA bool      // the front proxy's CA has signed the certificate
	invalid   bool      // no CA has signed the certificate, or its subject is invalid

	notAfter            time.Time           // expiry of the result
	clientCAs, proxyCAs *x509.VerifyOptions // the CAs with which the certificate was verified
}

// certificate returns the identity of the peer's certificate. It caches the identity at the connection, unless conn is
// nil.
func (a *Authenticator) certificate(conn *connection, peer []*x509.Certificate) *identity {
	now := a.Now()
	clientCAs, proxyCAs := a.ClientCAs.verifyOptions(), (*x509.VerifyOptions)(nil)
	if a.FrontProxy != nil {
		proxyCAs = a.FrontProxy.CAs.verifyOptions()
	}
	if conn != nil {
		id := conn.Load()
		if id != nil && now.Before(id.notAfter) && id.clientCAs == clientCAs && id.proxyCAs == proxyCAs {
			return id
		}
	}
	id := &identity{clientCAs: clientCAs, proxyCAs: proxyCAs}
	a.identify(id, peer, now)
	if conn != nil && (id.byProxyCA || !id.invalid) {
		conn.Store(id)
	}
	return id
}

// identify fills in id from the peer's certificate. It checks the front proxy's CAs first. A client that is not the
// front proxy is rejected if one of these CAs has signed its certificate, even if that CA is also a CA of users. See
// https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/#ca-reusage-and-conflicts.
func (a *Authenticator) identify(id *identity, peer []*x509.Certificate, now time.Time) {
	notAfter, byProxyCA := verify(id.proxyCAs, peer, now)
	if byProxyCA {
		id.byProxyCA, id.notAfter = true, notAfter
	}
	notAfter, ok := verify(id.clientCAs, peer, now)
	if !ok {
		id.invalid = id.clientCAs != nil
		return
	}
	if !byProxyCA || notAfter.Before(id.notAfter) {
		id.notAfter = notAfter
	}
	id.user, id.invalid = subject(peer[0])
	if id.user == nil && id.proxyCAs != nil && !byProxyCA {
		id.invalid = true // upstream's authenticator of the front proxy rejects such certificates
	}
}
