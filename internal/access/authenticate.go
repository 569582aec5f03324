package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"net"
	"net/http"
	"slices"
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

type connectionKey struct{}

// ConnContext gives a connection a place to keep its identity; it is for
// http.Server.ConnContext.
func ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, new(atomic.Pointer[identity]))
}

// Authenticate returns the user, or a 401 StatusError. The identity of a client
// certificate is computed once a connection and believed until the certificate expires.
func (a *Authenticator) Authenticate(r *http.Request) (user.Info, error) {
	ctx := r.Context()
	if u, ok := ctx.Value(userKey{}).(user.Info); ok {
		return u, nil
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		u, err := a.certificate(ctx, r.TLS.PeerCertificates)
		if u != nil || err != nil {
			return u, err
		}
	}
	if !a.anonymous || hasToken(r) {
		return nil, unauthorized()
	}
	return &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, nil
}

// Privileged returns the caller if it is known without looking further, be it by its
// connection or from inside this process, and is in system:masters, who may do everything. nil
// says nothing: Authenticate and Authorize decide.
func (a *Authenticator) Privileged(r *http.Request) user.Info {
	ctx := r.Context()
	u, _ := ctx.Value(userKey{}).(user.Info)
	if slot, ok := ctx.Value(connectionKey{}).(*atomic.Pointer[identity]); ok && u == nil {
		if id := slot.Load(); id != nil && a.now().Before(id.until) {
			u = id.user
		}
	}
	if u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return u
	}
	return nil
}

func unauthorized() error { return apierrors.NewUnauthorized("Unauthorized") }

func (a *Authenticator) certificate(ctx context.Context, peer []*x509.Certificate) (user.Info, error) {
	now := a.now()
	slot, _ := ctx.Value(connectionKey{}).(*atomic.Pointer[identity])
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
