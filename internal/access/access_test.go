package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	anonymousrequest "k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

var now = time.Now().Truncate(time.Second)

// signer is a CA for tests.
type signer struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newSigner(t testing.TB) *signer {
	s := &signer{t: t}
	s.cert, s.key = s.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, NotAfter: now.Add(time.Hour)})
	return s
}

func (s *signer) issue(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(2)
	template.NotBefore = now.Add(-time.Hour)
	parent, signKey := s.cert, s.key
	if parent == nil {
		parent, signKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signKey)
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		s.t.Fatal(err)
	}
	return c, key
}

func (s *signer) client(subject pkix.Name, until time.Time, usage ...x509.ExtKeyUsage) *x509.Certificate {
	c, _ := s.issue(&x509.Certificate{Subject: subject, NotAfter: until, ExtKeyUsage: usage})
	return c
}

// pool returns a CAPool with s as its only CA.
func (s *signer) pool() *CAPool {
	s.t.Helper()
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})
	content, err := dynamiccertificates.NewStaticCAContent("test", data)
	if err != nil {
		s.t.Fatal(err)
	}
	return NewCAPool(content)
}

// authenticator returns an Authenticator that trusts client certificates signed by s. It accepts no tokens.
func (s *signer) authenticator(allowAnonymous bool, now func() time.Time) *Authenticator {
	none := authenticator.TokenFunc(noToken)
	tokens := union.New(bearertoken.New(none), websocket.NewProtocolAuthenticator(none))
	a := Authentication{ClientCAs: s.pool(), Tokens: tokens, Now: now}
	if allowAnonymous {
		a.Anonymous = anonymousrequest.NewAuthenticator(nil)
	}
	return NewAuthenticator(a)
}

func noToken(context.Context, string) (*authenticator.Response, bool, error) { return nil, false, nil }

func request(certs ...*x509.Certificate) *http.Request {
	r := httptest.NewRequest("GET", "/apis", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: certs}
	return r
}

func wantUnauthorized(t *testing.T, u user.Info, err error) {
	t.Helper()
	if u != nil || !apierrors.IsUnauthorized(err) || err.Error() != "Unauthorized" {
		t.Errorf("got user %v, error %v; want 401 Unauthorized", u, err)
	}
}

// TestCertificatesAsUpstream checks that client certificates yield the same identities as with upstream's
// authenticator. CRD-069
func TestCertificatesAsUpstream(t *testing.T) {
	ca, foreign := newSigner(t), newSigner(t)
	uid := pkix.AttributeTypeAndValue{Type: uidOID, Value: "u-1"}
	later, client := now.Add(30*time.Minute), x509.ExtKeyUsageClientAuth
	certs := map[string]*x509.Certificate{
		"user": ca.client(pkix.Name{CommonName: "jane", Organization: []string{"a", "b"}}, later, client),
		"masters": ca.client(pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}, later,
			client),
		"uid": ca.client(pkix.Name{CommonName: "jane", ExtraNames: []pkix.AttributeTypeAndValue{uid}}, later,
			client),
		"two uids": ca.client(pkix.Name{CommonName: "jane", ExtraNames: []pkix.AttributeTypeAndValue{uid, uid}},
			later, client),
		"anonymous": ca.client(pkix.Name{CommonName: user.Anonymous}, later, client),
		"authenticated": ca.client(pkix.Name{CommonName: "x", Organization: []string{user.AllAuthenticated}}, later,
			client),
		"no name":     ca.client(pkix.Name{Organization: []string{"system:masters"}}, later, client),
		"expired":     ca.client(pkix.Name{CommonName: "jane"}, now.Add(-time.Minute), client),
		"server only": ca.client(pkix.Name{CommonName: "jane"}, later, x509.ExtKeyUsageServerAuth),
		"foreign": foreign.client(pkix.Name{CommonName: "jane", Organization: []string{"system:masters"}}, later,
			client),
	}
	options := x509request.DefaultVerifyOptions()
	options.Roots = ca.pool().verifyOptions().Roots
	upstream := group.NewAuthenticatedGroupAdder(x509request.New(options, x509request.CommonNameUserConversion))
	ours := ca.authenticator(false, func() time.Time { return now })
	for name, c := range certs {
		t.Run(name, func(t *testing.T) {
			want, ok, wantErr := upstream.AuthenticateRequest(request(c))
			got, err := ours.Authenticate(request(c))
			if wantErr != nil || !ok {
				wantUnauthorized(t, got, err)
				return
			}
			if err != nil || !reflect.DeepEqual(got, want.User) {
				t.Errorf("got %+v, %v, want %+v", got, err, want.User)
			}
		})
	}
	var _ authenticator.Request = upstream
}

// TestIdentityOfAConnectionExpires checks that the identity cached for a connection is used until its certificate
// expires, and is then no longer used. CRD-069
func TestIdentityOfAConnectionExpires(t *testing.T) {
	ca := newSigner(t)
	clock := now
	a := ca.authenticator(true, func() time.Time { return clock })
	c := ca.client(pkix.Name{CommonName: "jane"}, now.Add(time.Minute), x509.ExtKeyUsageClientAuth)
	r := request(c)
	r = r.WithContext(ConnContext(context.Background(), nil))
	first, err := a.Authenticate(r)
	if err != nil {
		t.Fatal(err)
	}
	second, err := a.Authenticate(r)
	if err != nil || second != first {
		t.Errorf("second request: got %v, %v; want the identity computed for the first", second, err)
	}
	clock = now.Add(2 * time.Minute)
	u, err := a.Authenticate(r)
	wantUnauthorized(t, u, err)
}

// TestOtherCredentials checks requests with tokens, without credentials and with an in-process identity. CRD-069
func TestOtherCredentials(t *testing.T) {
	ca := newSigner(t)
	open := ca.authenticator(true, time.Now)
	closed := ca.authenticator(false, time.Now)
	with := func(key, value string) *http.Request {
		r := httptest.NewRequest("GET", "/", nil)
		if key != "" {
			r.Header.Set(key, value)
		}
		return r
	}
	for _, header := range []string{"Bearer abc", "bearer x y", "BEARER abc"} {
		u, err := open.Authenticate(with("Authorization", header))
		wantUnauthorized(t, u, err)
	}
	socket := with("Sec-WebSocket-Protocol", "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj")
	socket.Header.Set("Connection", "Upgrade")
	socket.Header.Set("Upgrade", "websocket")
	u, err := open.Authenticate(socket)
	wantUnauthorized(t, u, err)
	u, err = closed.Authenticate(with("", ""))
	wantUnauthorized(t, u, err)
	for _, header := range []string{"", "Bearer", "Bearer ", "Basic YTpi"} {
		u, err := open.Authenticate(with("Authorization", header))
		want := &user.DefaultInfo{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}
		if err != nil || !reflect.DeepEqual(u, user.Info(want)) {
			t.Errorf("%q: got %v, %v, want anonymous", header, u, err)
		}
	}
	r := with("Authorization", "Bearer abc")
	u, err = closed.Authenticate(r.WithContext(WithUser(r.Context(), Loopback())))
	if err != nil || u.GetName() != "system:apiserver" {
		t.Errorf("in-process identity: got %v, %v", u, err)
	}
}

// TestFrontProxy checks that the front proxy's CA is checked before the CA of users. A client that is not the front
// proxy is rejected if the front proxy's CA has signed its certificate, even if both CAs are the same. Headers are
// trusted only if the front proxy sends them. AGG-042 AGG-043 AGG-044 AGG-045 AGG-029
func TestFrontProxy(t *testing.T) {
	users, proxies, foreign := newSigner(t), newSigner(t), newSigner(t)
	later, client := now.Add(30*time.Minute), x509.ExtKeyUsageClientAuth
	certificate := func(s *signer, name string) *x509.Certificate {
		return s.client(pkix.Name{CommonName: name, Organization: []string{"dev"}}, later, client)
	}
	headers, err := headerrequest.New(
		[]string{"X-Remote-User"}, []string{"X-Remote-Uid"}, []string{"X-Remote-Group"}, []string{"X-Remote-Extra-"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		users   *signer // the CA of users
		allowed []string
		cert    *x509.Certificate
		user    string // in the header
		want    string // "" means 401
	}{
		{"the front proxy", users, []string{"front"}, certificate(proxies, "front"), "jane", "jane"},
		{"any name", users, nil, certificate(proxies, "any"), "jane", "jane"},
		{"another name", users, []string{"front"}, certificate(proxies, "other"), "jane", ""},
		{"another name, without a header", users, []string{"front"}, certificate(proxies, "other"), "", ""},
		{"the front proxy, without a header", users, []string{"front"}, certificate(proxies, "front"), "", ""},
		{"a user", users, []string{"front"}, certificate(users, "joe"), "", "joe"},
		{"a user with another user's header", users, []string{"front"}, certificate(users, "joe"), "jane", "joe"},
		{"the front proxy's name from an unknown CA", users, []string{"front"}, certificate(foreign, "front"), "jane",
			""},
		{"no certificate", users, []string{"front"}, nil, "jane", user.Anonymous},
		{"a user, one CA for both", proxies, []string{"front"}, certificate(proxies, "joe"), "", ""},
		{"the front proxy, one CA for both", proxies, []string{"front"}, certificate(proxies, "front"), "jane", "jane"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := c.users.authenticator(true, func() time.Time { return now })
			a.FrontProxy = &FrontProxy{CAs: proxies.pool(), Names: func() []string { return c.allowed },
				Headers: headers}
			r := httptest.NewRequest("GET", "/apis", nil)
			if c.cert != nil {
				r = request(c.cert)
			}
			r = r.WithContext(ConnContext(r.Context(), nil))
			for range 2 { // the second request uses the cached identity
				r.Header = http.Header{}
				if c.user != "" {
					r.Header = http.Header{
						"X-Remote-User": {c.user}, "X-Remote-Group": {"a", "b"},
						"X-Remote-Extra-Scopes%2fx": {"y"}, "X-Remote-Uid": {"7"},
					}
				}
				u, err := a.Authenticate(r)
				if c.want == "" {
					wantUnauthorized(t, u, err)
					continue
				}
				if err != nil || u.GetName() != c.want {
					t.Fatalf("got %v %v, want %s", u, err, c.want)
				}
				byHeader := &user.DefaultInfo{
					Name: "jane", UID: "7", Groups: []string{"a", "b"}, Extra: map[string][]string{"scopes/x": {"y"}},
				}
				if c.want == "jane" && !reflect.DeepEqual(u, user.Info(byHeader)) {
					t.Errorf("got %+v, want %+v", u, byHeader)
				}
			}
		})
	}
}

// rotatingCA is a CA provider whose content changes.
type rotatingCA struct {
	dynamiccertificates.CAContentProvider
	listener dynamiccertificates.Listener
}

func (r *rotatingCA) AddListener(l dynamiccertificates.Listener) { r.listener = l }

// TestRemovedCAIsNotTrusted checks that a client certificate is rejected on an open connection once its CA has been
// removed. AGG-026
func TestRemovedCAIsNotTrusted(t *testing.T) {
	removed, added := newSigner(t), newSigner(t)
	file := &rotatingCA{CAContentProvider: removed.pool().CAContentProvider}
	a := NewAuthenticator(Authentication{ClientCAs: NewCAPool(file), Now: func() time.Time { return now }})
	r := request(removed.client(pkix.Name{CommonName: "jane"}, now.Add(time.Minute), x509.ExtKeyUsageClientAuth))
	r = r.WithContext(ConnContext(r.Context(), nil))
	for range 2 {
		if u, err := a.Authenticate(r); err != nil || u.GetName() != "jane" {
			t.Fatal(u, err)
		}
	}
	file.CAContentProvider = added.pool().CAContentProvider
	file.listener.Enqueue()
	u, err := a.Authenticate(r)
	wantUnauthorized(t, u, err)
}

var (
	anonymous = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	named     = &user.DefaultInfo{Name: "u", Groups: []string{"dev", user.AllAuthenticated}}
)

// TestForbiddenAsUpstream checks that the message of a 403 equals upstream's for all forms of requests. CRD-069
func TestForbiddenAsUpstream(t *testing.T) {
	for _, a := range []Attributes{
		{User: anonymous, Verb: "get", Path: "/"},
		{User: anonymous, Verb: "get", Path: "/a<b>&c"},
		{User: named, Resource: true, Verb: "list", Group: "stable.example.com", Version: "v1", Plural: "crontabs",
			Namespace: "default"},
		{User: named, Resource: true, Verb: "get", Group: "stable.example.com", Version: "v1", Plural: "crontabs",
			Namespace: "default", Name: "x"},
		{User: named, Resource: true, Verb: "patch", Group: "stable.example.com", Version: "v1", Plural: "crontabs",
			Subresource: "status", Namespace: "default", Name: "x"},
		{User: named, Resource: true, Verb: "list", Version: "v1", Plural: "namespaces"},
	} {
		for _, reason := range []string{"", "no <role>"} {
			upstream := responsewriters.ForbiddenStatusError(authorizer.AttributesRecord{
				User: a.User, Verb: a.Verb, Path: a.Path, ResourceRequest: a.Resource, Namespace: a.Namespace,
				Name:     a.Name,
				APIGroup: a.Group, APIVersion: a.Version, Resource: a.Plural, Subresource: a.Subresource,
			}, reason)
			if got := Forbidden(&a, reason); !reflect.DeepEqual(got, error(upstream)) {
				t.Errorf("got\n%#v, want\n%#v", got, upstream)
			}
		}
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	ca := newSigner(b)
	a := ca.authenticator(true, time.Now)
	z, err := Chain()
	if err != nil {
		b.Fatal(err)
	}
	name := pkix.Name{CommonName: "jane", Organization: []string{user.SystemPrivilegedGroup}}
	r := request(ca.client(name, now.Add(time.Hour), x509.ExtKeyUsageClientAuth))
	r = r.WithContext(ConnContext(context.Background(), nil))
	b.ReportAllocs()
	for b.Loop() {
		u, err := a.Authenticate(r)
		if err != nil {
			b.Fatal(err)
		}
		d, _, err := z.Authorize(b.Context(), &Attributes{User: u, Resource: true, Verb: "get", Plural: "crontabs"})
		if err != nil || d != authorizer.DecisionAllow {
			b.Fatal(d, err)
		}
	}
}
