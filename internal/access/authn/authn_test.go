package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trellis-k8s/trellis/internal/access"
)

// objects returns a ServiceAccount, unless deleted is set.
type objects struct {
	serviceaccount.ServiceAccountTokenGetter // nil
	deleted                                  bool
}

func (o *objects) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if o.deleted || namespace != "default" || name != "robot" {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), name)
	}
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "7"}}, nil
}

// noSecrets is a SecretsGetter for tests that write no Secrets.
type noSecrets struct{ typedcorev1.SecretsGetter }

// fixture creates Authenticators with a CA, a key and one ServiceAccount.
type fixture struct {
	testing.TB
	key *ecdsa.PrivateKey
	ca  []byte
	objects
}

func newFixture(t testing.TB) *fixture {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{TB: t, key: key, ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (fx *fixture) file(name, text string) string {
	fx.Helper()
	path := filepath.Join(fx.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		fx.Fatal(err)
	}
	return path
}

func (fx *fixture) newAuthenticators(c Config) *Authenticators {
	fx.Helper()
	a, err := New(fx.Context(), c, fx.ca, fx.key, &fx.objects, noSecrets{})
	if err != nil {
		fx.Fatal(err)
	}
	return a
}

// user returns the name of the user of a request to a path with a token, or "" if the request is rejected.
func (fx *fixture) user(a *Authenticators, path, token string) string {
	fx.Helper()
	r := httptest.NewRequest("GET", path, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	u, err := access.NewAuthenticator(a.Authentication).Authenticate(r)
	if err != nil {
		if !apierrors.IsUnauthorized(err) {
			fx.Fatal(err)
		}
		return ""
	}
	return u.GetName()
}

func (fx *fixture) expect(a *Authenticators, path, token, want string) {
	fx.Helper()
	if got := fx.user(a, path, token); got != want {
		fx.Errorf("%s with token %.20q: got user %q, want %q", path, token, got, want)
	}
}

// TestTokenFile checks that tokens of a token file authenticate their users, and that other tokens are rejected and do
// not fall back to anonymous. AGG-033
func TestTokenFile(t *testing.T) {
	fx := newFixture(t)
	a := fx.newAuthenticators(Config{Anonymous: true, TokenAuthFile: fx.file("tokens.csv", "abc,jane,1,\"dev,ops\"\n")})
	fx.expect(a, "/apis", "abc", "jane")
	fx.expect(a, "/apis", "abd", "")
	fx.expect(a, "/apis", "", "system:anonymous")
	fx.expect(fx.newAuthenticators(Config{}), "/apis", "", "")
}

// TestAccountTokens checks the lifetime, audience, issuer and key of service account tokens, and that a token is
// invalid once its ServiceAccount is deleted. EXT-023 EXT-026
func TestAccountTokens(t *testing.T) {
	fx := newFixture(t)
	a := fx.newAuthenticators(Config{})
	account := core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot", UID: "7"}}
	token := func(a *Authenticators, account core.ServiceAccount, seconds int64, audience string) string {
		public, private, err := serviceaccount.Claims(account, nil, nil, nil, nil, nil, seconds, 0, []string{audience},
			nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := a.Issuer.GenerateToken(t.Context(), public, private)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	const robot = "system:serviceaccount:default:robot"
	fx.expect(a, "/apis", token(a, account, 600, DefaultIssuer), robot)
	fx.expect(a, "/apis", token(a, account, -600, DefaultIssuer), "")
	fx.expect(a, "/apis", token(a, account, 600, "others"), "")
	recreated := account
	recreated.UID = "8"
	fx.expect(a, "/apis", token(a, recreated, 600, DefaultIssuer), "")
	otherKey := newFixture(t).newAuthenticators(Config{})
	fx.expect(a, "/apis", token(otherKey, account, 600, DefaultIssuer), "")
	newIssuer := fx.newAuthenticators(Config{
		APIAudiences: []string{"us"}, Accounts: Accounts{Issuers: []string{"https://new.example.com", DefaultIssuer}},
	})
	fx.expect(newIssuer, "/apis", token(a, account, 600, "us"), robot) // of the previous issuer
	fx.expect(newIssuer, "/apis", token(newIssuer, account, 600, "us"), robot)
	fx.expect(a, "/apis", token(newIssuer, account, 600, DefaultIssuer), "") // of an unknown issuer
	late := token(a, account, 601, DefaultIssuer)
	fx.deleted = true
	fx.expect(a, "/apis", late, "")
}

// TestKeyFiles checks that the signing key and the keys that verify tokens can come from files.
func TestKeyFiles(t *testing.T) {
	fx, other := newFixture(t), newFixture(t)
	der, err := x509.MarshalECPrivateKey(other.key)
	if err != nil {
		t.Fatal(err)
	}
	file := fx.file("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	a := fx.newAuthenticators(Config{Accounts: Accounts{SigningKeyFile: file}})
	account := core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot", UID: "7"}}
	public, private, err := serviceaccount.Claims(account, nil, nil, nil, nil, nil, 600, 0, []string{DefaultIssuer},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := a.Issuer.GenerateToken(t.Context(), public, private)
	if err != nil {
		t.Fatal(err)
	}
	fx.expect(a, "/apis", token, "system:serviceaccount:default:robot")
	fx.expect(fx.newAuthenticators(Config{Accounts: Accounts{KeyFiles: []string{file}}}), "/apis", token,
		"system:serviceaccount:default:robot")
	fx.expect(fx.newAuthenticators(Config{}), "/apis", token, "")

	// A new signing key does not invalidate tokens if the old key is still listed.
	der, err = x509.MarshalECPrivateKey(newFixture(t).key)
	if err != nil {
		t.Fatal(err)
	}
	rotated := fx.file("new.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	a = fx.newAuthenticators(Config{Accounts: Accounts{SigningKeyFile: rotated, KeyFiles: []string{rotated, file}}})
	fx.expect(a, "/apis", token, "system:serviceaccount:default:robot")
	if token, err = a.Issuer.GenerateToken(t.Context(), public, private); err != nil {
		t.Fatal(err)
	}
	fx.expect(a, "/apis", token, "system:serviceaccount:default:robot")
	fx.expect(fx.newAuthenticators(Config{Accounts: Accounts{KeyFiles: []string{file}}}), "/apis", token, "")
}

// issuer is an OpenID Connect issuer that signs arbitrary claims.
type issuer struct {
	*httptest.Server
	signer jose.Signer
}

func newIssuer(t testing.TB, key *ecdsa.PrivateKey) *issuer {
	i := &issuer{}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case access.ConfigurationPath:
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q,"response_types_supported":["id_token"],
				"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256"]}`, i.URL, i.URL+"/keys")
		case "/keys":
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{
				Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}},
			})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(i.Close)
	var err error
	if i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256,
		Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, nil); err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *issuer) token(t testing.TB, claims map[string]any) string {
	t.Helper()
	all := map[string]any{
		"iss": i.URL, "aud": "trellis", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
	}
	for k, v := range claims {
		all[k] = v
	}
	text, err := jwt.Signed(i.signer).Claims(all).CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const configuration = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
`

// TestJWTIssuer checks that tokens of an issuer in the configuration file are validated with the issuer's CEL
// expressions.
func TestJWTIssuer(t *testing.T) {
	fx := newFixture(t)
	i := newIssuer(t, fx.key)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
	a := fx.newAuthenticators(Config{ConfigFile: fx.file("authn.yaml", configuration+`
jwt:
- issuer:
    url: `+i.URL+`
    audiences: [trellis]
    certificateAuthority: |
      `+strings.ReplaceAll(strings.TrimSpace(ca), "\n", "\n      ")+`
  claimValidationRules:
  - expression: claims.team == 'trellis'
    message: not of the team
  claimMappings:
    username: {expression: "'oidc:' + claims.sub"}
    groups: {claim: groups, prefix: ""}
  userValidationRules:
  - expression: "!user.username.startsWith('oidc:system')"
    message: reserved
`)})
	for deadline := time.Now().Add(20 * time.Second); ; { // the issuer's keys are fetched in the background
		if fx.user(a, "/apis", i.token(t, map[string]any{"sub": "jane", "team": "trellis"})) == "oidc:jane" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("timed out waiting for a token of the issuer to be accepted")
		}
	}
	for _, claims := range []map[string]any{
		{"sub": "jane"}, {"sub": "jane", "team": "other"}, {"sub": "system", "team": "trellis"},
		{"sub": "jane", "team": "trellis", "aud": "others"}, {"sub": "jane", "team": "trellis", "exp": 1},
		{"sub": "jane", "team": "trellis", "iss": "https://other.example.com"},
	} {
		fx.expect(a, "/apis", i.token(t, claims), "")
	}
}

// TestIssuersAreReloaded checks that issuers are reloaded when the file changes, and that the server connects to an
// issuer through the issuer's egress selector. An unusable file is reported and has no effect. A file that changes the
// configuration of anonymous requests is also unusable.
func TestIssuersAreReloaded(t *testing.T) {
	fx := newFixture(t)
	i := newIssuer(t, fx.key)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
	jwt := "jwt: [{issuer: {url: '" + i.URL +
		"', egressSelectorType: cluster, audiences: [trellis], certificateAuthority: " +
		strconv.Quote(ca) + "}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n"
	path := fx.file("authn.yaml", configuration+jwt)
	replaceFile := func(text string) {
		t.Helper()
		if err := os.Rename(fx.file("new.yaml", configuration+text), path); err != nil {
			t.Fatal(err)
		}
	}
	dialled := atomic.Int64{}
	lookup := func(c egressselector.NetworkContext) (utilnet.DialFunc, error) {
		if c.EgressSelectionName != egressselector.Cluster {
			return nil, nil
		}
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			dialled.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}, nil
	}
	a := fx.newAuthenticators(Config{ConfigFile: path, EgressLookup: lookup})
	reports, running := make(chan error, 10), sync.WaitGroup{}
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { a.Run(ctx, func(err error) { reports <- err }) })
	id := 0
	accepted := func() bool { // each call uses a new token, whose result is not cached
		id++
		return fx.user(a, "/apis", i.token(t, map[string]any{"sub": "jane", "jti": strconv.Itoa(id)})) == "jane"
	}
	for !accepted() { // the issuer's keys are fetched in the background
		runtime.Gosched()
	}
	if dialled.Load() == 0 {
		t.Error("the issuer was not dialled through the egress selector")
	}
	for text, want := range map[string]string{
		"jwt: [{}]\n":                        "jwt[0].issuer.url: Required value",
		jwt + "anonymous: {enabled: true}\n": "anonymous: Forbidden: changed from initial configuration file",
	} {
		replaceFile(text)
		if err := <-reports; !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
		if !accepted() {
			t.Errorf("tokens of the issuer are rejected after the file %q", text)
		}
	}
	replaceFile("")
	for accepted() {
		runtime.Gosched()
	}
	cancel()
	running.Wait()
}

// TestAnonymousByPath checks that the configuration file can restrict anonymous requests to paths. AGG-005
func TestAnonymousByPath(t *testing.T) {
	fx := newFixture(t)
	a := fx.newAuthenticators(Config{
		ConfigFile: fx.file("authn.yaml", configuration+"anonymous: {enabled: true, conditions: [{path: /livez}]}\n"),
	})
	fx.expect(a, "/livez", "", "system:anonymous")
	fx.expect(a, "/apis", "", "")
}

// TestBadFiles checks that New returns an error that names the flag or the field of an invalid file.
func TestBadFiles(t *testing.T) {
	fx := newFixture(t)
	for name, c := range map[string]Config{
		"--client-ca-file":               {ClientCAFile: fx.file("ca.crt", "nothing")},
		"--requestheader-client-ca-file": {RequestHeader: RequestHeader{CAFile: filepath.Join(t.TempDir(), "missing")}},
		"--service-account-key-file": {Accounts: Accounts{KeyFiles: []string{fx.file("key",
			"x")}}},
		"--service-account-signing-key-file": {Accounts: Accounts{SigningKeyFile: fx.file("key2", "x")}},
		"strict decoding error: unknown field \"anonymos\"": {ConfigFile: fx.file("a.yaml",
			configuration+"anonymos: {}\n")},
		"jwt[0].issuer.url: Required value": {ConfigFile: fx.file("b.yaml",
			configuration+"jwt: [{issuer: {audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n")},
		"no kind \"Pod\"": {ConfigFile: fx.file("c.yaml", "apiVersion: v1\nkind: Pod\n")},
		"URL scheme must be https": {ConfigFile: fx.file("d.yaml",
			configuration+"jwt: [{issuer: {url: 'http://a', audiences: [a]}, claimMappings: {username: {claim: sub, "+
				"prefix: ''}}}]\n")},
	} {
		_, err := New(t.Context(), c, fx.ca, fx.key, &fx.objects, noSecrets{})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
	if _, err := New(t.Context(), Config{}, nil, fx.key, &fx.objects, noSecrets{}); err == nil ||
		errors.Unwrap(err) == nil {
		t.Error(err)
	}
}

// FuzzCredentials checks that no credentials make Authenticate panic, and that only valid ones authenticate a user.
func FuzzCredentials(f *testing.F) {
	fx := newFixture(f)
	a := fx.newAuthenticators(Config{Anonymous: true, TokenAuthFile: fx.file("tokens.csv", "abc,jane,1\n")})
	known := access.NewAuthenticator(a.Authentication)
	f.Add("Bearer eyJhbGciOiJFUzI1NiJ9.e30.x", "base64url.bearer.authorization.k8s.io.YWJj", "x")
	f.Add("Basic YTpi", "", "")
	f.Fuzz(func(t *testing.T, authorization, protocol, remote string) {
		r := httptest.NewRequest("GET", "/apis", nil)
		r.Header["Authorization"], r.Header["Sec-Websocket-Protocol"] = []string{authorization}, []string{protocol}
		r.Header["X-Remote-User"] = []string{remote}
		r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
		u, err := known.Authenticate(r)
		if err == nil && u.GetName() != "system:anonymous" && !strings.Contains(authorization, "abc") &&
			!strings.Contains(protocol, "YWJj") {
			t.Errorf("%q %q %q: got user %v", authorization, protocol, remote, u)
		}
	})
}

// FuzzConfiguration checks that no content of a configuration file makes New panic.
func FuzzConfiguration(f *testing.F) {
	fx := newFixture(f)
	f.Add(configuration + "anonymous: {enabled: true}\n")
	f.Add(configuration +
		"jwt: [{issuer: {url: 'https://a', audiences: [a]}, claimMappings: {username: {expression: 'claims.sub'}}}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "authn.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, _ = New(ctx, Config{ConfigFile: file}, fx.ca, fx.key, &fx.objects, noSecrets{})
	})
}
