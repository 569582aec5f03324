package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
)

// tokenProtocol is how browsers send a bearer token on a WebSocket.
const tokenProtocol = "base64url.bearer.authorization.k8s.io."

// uidOID is the subject attribute that carries a user's UID in a client certificate.
var uidOID = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}

// Authenticator finds out who sent a request.
type Authenticator struct {
	roots     *x509.CertPool
	anonymous bool
	now       func() time.Time
}

// NewAuthenticator trusts client certificates that chain to roots. With anonymous, a
// request without credentials is system:anonymous; otherwise it is refused.
func NewAuthenticator(roots *x509.CertPool, anonymous bool, now func() time.Time) *Authenticator {
	return &Authenticator{roots: roots, anonymous: anonymous, now: now}
}

// identity is what a client certificate says, and until when it may be believed.
type identity struct {
	user  user.Info // nil: the certificate names nobody
	until time.Time
}

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

// nobody is the caller without credentials.
var nobody user.Info = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}

// Authenticate returns the user, or a 401 StatusError. The identity of a client
// certificate is computed once a connection and believed until the certificate expires.
func (a *Authenticator) Authenticate(r *http.Request) (user.Info, error) {
	known := r.Context().Value(callerKey{})
	if u, ok := known.(user.Info); ok {
		return u, nil
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		slot, _ := known.(*connection)
		if u, err := a.certificate(slot, r.TLS.PeerCertificates); u != nil || err != nil {
			return u, err
		}
	}
	if !a.anonymous || hasToken(r) {
		return nil, unauthorized()
	}
	return nobody, nil
}

func unauthorized() error { return apierrors.NewUnauthorized("Unauthorized") }

// certificate says whose certificate it is; nil: nobody's. slot is where the connection keeps that, nil if it has no place.
func (a *Authenticator) certificate(slot *connection, peer []*x509.Certificate) (user.Info, error) {
	now := a.now()
	if slot != nil {
		if id := slot.Load(); id != nil && now.Before(id.until) {
			return id.user, nil
		}
	}
	id, err := a.verify(peer, now)
	if err != nil {
		return nil, unauthorized()
	}
	if slot != nil {
		slot.Store(id)
	}
	return id.user, nil
}

// verify checks the chain for client use and reads the identity from its leaf.
func (a *Authenticator) verify(peer []*x509.Certificate, now time.Time) (*identity, error) {
	o := x509.VerifyOptions{
		Roots:       a.roots,
		CurrentTime: now,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(peer) > 1 {
		o.Intermediates = x509.NewCertPool()
		for _, c := range peer[1:] {
			o.Intermediates.AddCert(c)
		}
	}
	chains, err := peer[0].Verify(o)
	if err != nil {
		return nil, err
	}
	id := &identity{until: peer[0].NotAfter}
	for _, c := range chains[0] {
		if c.NotAfter.Before(id.until) {
			id.until = c.NotAfter
		}
	}
	id.user, err = subject(peer[0])
	return id, err
}

// subject is upstream's reading of a certificate: common name, organizations as
// groups, at most one UID, and the certificate's hash as its credential.
func subject(c *x509.Certificate) (user.Info, error) {
	if c.Subject.CommonName == "" {
		return nil, nil
	}
	u := &user.DefaultInfo{Name: c.Subject.CommonName}
	for _, n := range c.Subject.Names {
		if !n.Type.Equal(uidOID) {
			continue
		}
		uid, _ := n.Value.(string)
		if uid == "" || u.UID != "" {
			return nil, unauthorized()
		}
		u.UID = uid
	}
	hash := sha256.Sum256(c.Raw)
	u.Extra = map[string][]string{user.CredentialIDKey: {"X509SHA256=" + hex.EncodeToString(hash[:])}}
	u.Groups = withAuthenticated(u.Name, c.Subject.Organization)
	return u, nil
}

// withAuthenticated adds system:authenticated where it belongs.
func withAuthenticated(name string, groups []string) []string {
	if name == user.Anonymous {
		return groups
	}
	for _, g := range groups {
		if g == user.AllAuthenticated || g == user.AllUnauthenticated {
			return groups
		}
	}
	return append(groups[:len(groups):len(groups)], user.AllAuthenticated)
}

// hasToken reports a bearer token, in the header or as a WebSocket protocol. None
// is accepted yet, so that one that is sent is an invalid one.
func hasToken(r *http.Request) bool {
	if auth := r.Header["Authorization"]; len(auth) > 0 {
		parts := strings.SplitN(strings.TrimSpace(auth[0]), " ", 3)
		if len(parts) > 1 && parts[1] != "" && strings.EqualFold(parts[0], "bearer") {
			return true
		}
	}
	for _, h := range r.Header["Sec-Websocket-Protocol"] {
		if strings.Contains(h, tokenProtocol) {
			return true
		}
	}
	return false
}
