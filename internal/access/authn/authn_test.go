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

// objects has one account, unless it is gone.
type objects struct {
	serviceaccount.ServiceAccountTokenGetter // nil
	gone                                     bool
}

func (o *objects) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if o.gone || namespace != "default" || name != "robot" {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), name)
	}
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "7"}}, nil
}

// unwritten is for Secrets that nobody writes.
type unwritten struct{ typedcorev1.SecretsGetter }

type world struct {
	testing.TB
	key *ecdsa.PrivateKey
	ca  []byte
	objects
}

func newWorld(t testing.TB) *world {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &world{TB: t, key: key, ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (w *world) file(name, text string) string {
	w.Helper()
	path := filepath.Join(w.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	return path
}

func (w *world) open(c Config) *Authenticators {
	w.Helper()
	a, err := New(w.Context(), c, w.ca, w.key, &w.objects, unwritten{})
	if err != nil {
		w.Fatal(err)
	}
	return a
}

// who is the user of a request to a path with a token, "" if it is refused.
func (w *world) who(a *Authenticators, path, token string) string {
	w.Helper()
	r := httptest.NewRequest("GET", path, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	u, err := access.NewAuthenticator(a.Authentication).Authenticate(r)
	if err != nil {
		if !apierrors.IsUnauthorized(err) {
			w.Fatal(err)
		}
		return ""
	}
	return u.GetName()
}

func (w *world) expect(a *Authenticators, path, token, want string) {
	w.Helper()
	if got := w.who(a, path, token); got != want {
		w.Errorf("%s with token %.20q: %q, want %q", path, token, got, want)
	}
}

// AGG-033: tokens of a file are whose it says; other ones are refused, and are not anonymous.
func TestTokenFile(t *testing.T) {
	w := newWorld(t)
	a := w.open(Config{Anonymous: true, TokenAuthFile: w.file("tokens.csv", "abc,jane,1,\"dev,ops\"\n")})
	w.expect(a, "/apis", "abc", "jane")
	w.expect(a, "/apis", "abd", "")
	w.expect(a, "/apis", "", "system:anonymous")
	w.expect(w.open(Config{}), "/apis", "", "")
}

// EXT-023 EXT-026: a token of a service account is good as long as it says, for whom it says, while the account is there.
func TestAccountTokens(t *testing.T) {
	w := newWorld(t)
	a := w.open(Config{})
	account := core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot", UID: "7"}}
	token := func(a *Authenticators, of core.ServiceAccount, seconds int64, audience string) string {
		public, private, err := serviceaccount.Claims(of, nil, nil, nil, nil, nil, seconds, 0, []string{audience}, nil)
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
	w.expect(a, "/apis", token(a, account, 600, DefaultIssuer), robot)
	w.expect(a, "/apis", token(a, account, -600, DefaultIssuer), "")
	w.expect(a, "/apis", token(a, account, 600, "others"), "")
	recreated := account
	recreated.UID = "8"
	w.expect(a, "/apis", token(a, recreated, 600, DefaultIssuer), "")
	stranger := newWorld(t).open(Config{})
	w.expect(a, "/apis", token(stranger, account, 600, DefaultIssuer), "")
	another := w.open(Config{APIAudiences: []string{"us"}, Accounts: Accounts{Issuers: []string{"https://new.example.com", DefaultIssuer}}})
	w.expect(another, "/apis", token(a, account, 600, "us"), robot) // of an issuer of before
	w.expect(another, "/apis", token(another, account, 600, "us"), robot)
	w.expect(a, "/apis", token(another, account, 600, DefaultIssuer), "") // of an issuer nobody knows
	late := token(a, account, 601, DefaultIssuer)
	w.gone = true
	w.expect(a, "/apis", late, "")
}

// Keys may come from files: the private one that signs, and all that are recognized.
func TestKeyFiles(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	der, err := x509.MarshalECPrivateKey(other.key)
	if err != nil {
		t.Fatal(err)
	}
	file := w.file("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	a := w.open(Config{Accounts: Accounts{SigningKeyFile: file}})
	public, private, err := serviceaccount.Claims(core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot", UID: "7"}}, nil, nil, nil, nil, nil, 600, 0, []string{DefaultIssuer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := a.Issuer.GenerateToken(t.Context(), public, private)
	if err != nil {
		t.Fatal(err)
	}
	w.expect(a, "/apis", token, "system:serviceaccount:default:robot")
	w.expect(w.open(Config{Accounts: Accounts{KeyFiles: []string{file}}}), "/apis", token, "system:serviceaccount:default:robot")
	w.expect(w.open(Config{}), "/apis", token, "")
}

// issuer is an OpenID Connect issuer that signs what it is given.
type issuer struct {
	*httptest.Server
	signer jose.Signer
}

func newIssuer(t testing.TB, key *ecdsa.PrivateKey) *issuer {
	i := &issuer{}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case access.ConfigurationPath:
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q,"response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256"]}`, i.URL, i.URL+"/keys")
		case "/keys":
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(i.Close)
	var err error
	if i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, nil); err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *issuer) token(t testing.TB, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": i.URL, "aud": "trellis", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
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

// Tokens of an issuer of the configuration file are judged by its expressions.
func TestJWTIssuer(t *testing.T) {
	w := newWorld(t)
	i := newIssuer(t, w.key)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
	a := w.open(Config{ConfigFile: w.file("authn.yaml", configuration+`
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
	for deadline := time.Now().Add(20 * time.Second); ; { // it asks for the issuer's keys in the background
		if w.who(a, "/apis", i.token(t, map[string]any{"sub": "jane", "team": "trellis"})) == "oidc:jane" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("its tokens are not accepted")
		}
	}
	for _, claims := range []map[string]any{
		{"sub": "jane"}, {"sub": "jane", "team": "other"}, {"sub": "system", "team": "trellis"},
		{"sub": "jane", "team": "trellis", "aud": "others"}, {"sub": "jane", "team": "trellis", "exp": 1}, {"sub": "jane", "team": "trellis", "iss": "https://other.example.com"},
	} {
		w.expect(a, "/apis", i.token(t, claims), "")
	}
}

// Issuers are read again when the file changes, and dialled by the egress selection that they name. What cannot be used is told, and
// changes nothing; who may be anonymous stays.
func TestIssuersAreReadAgain(t *testing.T) {
	w := newWorld(t)
	i := newIssuer(t, w.key)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
	jwt := "jwt: [{issuer: {url: '" + i.URL + "', egressSelectorType: cluster, audiences: [trellis], certificateAuthority: " + strconv.Quote(ca) + "}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n"
	path := w.file("authn.yaml", configuration+jwt)
	say := func(text string) {
		t.Helper()
		if err := os.Rename(w.file("new.yaml", configuration+text), path); err != nil {
			t.Fatal(err)
		}
	}
	dialled := atomic.Int64{}
	a := w.open(Config{ConfigFile: path, EgressLookup: func(of egressselector.NetworkContext) (utilnet.DialFunc, error) {
		if of.EgressSelectionName != egressselector.Cluster {
			return nil, nil
		}
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			dialled.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}, nil
	}})
	reports, running := make(chan error, 10), sync.WaitGroup{}
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { a.Run(ctx, func(err error) { reports <- err }) })
	id := 0
	believed := func() bool { // a token that nobody has kept
		id++
		return w.who(a, "/apis", i.token(t, map[string]any{"sub": "jane", "jti": strconv.Itoa(id)})) == "jane"
	}
	for !believed() { // it asks for the issuer's keys in the background
		runtime.Gosched()
	}
	if dialled.Load() == 0 {
		t.Error("the issuer was not dialled as is said")
	}
	for text, want := range map[string]string{
		"jwt: [{}]\n":                        "jwt[0].issuer.url: Required value",
		jwt + "anonymous: {enabled: true}\n": "anonymous: Forbidden: changed from initial configuration file",
	} {
		say(text)
		if err := <-reports; !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
		if !believed() {
			t.Errorf("after %q the issuer is not believed any longer", text)
		}
	}
	say("")
	for believed() {
		runtime.Gosched()
	}
	cancel()
	running.Wait()
}

// AGG-005: who may be anonymous may be said by path.
func TestAnonymousByPath(t *testing.T) {
	w := newWorld(t)
	a := w.open(Config{ConfigFile: w.file("authn.yaml", configuration+"anonymous: {enabled: true, conditions: [{path: /livez}]}\n")})
	w.expect(a, "/livez", "", "system:anonymous")
	w.expect(a, "/apis", "", "")
}

// What a file says wrongly is told with the flag and the file, before anything is served.
func TestBadFiles(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]Config{
		"--client-ca-file":                                  {ClientCAFile: w.file("ca.crt", "nothing")},
		"--requestheader-client-ca-file":                    {RequestHeader: RequestHeader{CAFile: filepath.Join(t.TempDir(), "missing")}},
		"--service-account-key-file":                        {Accounts: Accounts{KeyFiles: []string{w.file("key", "x")}}},
		"--service-account-signing-key-file":                {Accounts: Accounts{SigningKeyFile: w.file("key2", "x")}},
		"strict decoding error: unknown field \"anonymos\"": {ConfigFile: w.file("a.yaml", configuration+"anonymos: {}\n")},
		"jwt[0].issuer.url: Required value":                 {ConfigFile: w.file("b.yaml", configuration+"jwt: [{issuer: {audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n")},
		"no kind \"Pod\"":                                   {ConfigFile: w.file("c.yaml", "apiVersion: v1\nkind: Pod\n")},
		"URL scheme must be https":                          {ConfigFile: w.file("d.yaml", configuration+"jwt: [{issuer: {url: 'http://a', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n")},
	} {
		_, err := New(t.Context(), c, w.ca, w.key, &w.objects, unwritten{})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
	if _, err := New(t.Context(), Config{}, nil, w.key, &w.objects, unwritten{}); err == nil || errors.Unwrap(err) == nil {
		t.Error(err)
	}
}

// FuzzCredentials: whatever a request bears, it is answered, and nobody becomes somebody by chance.
func FuzzCredentials(f *testing.F) {
	w := newWorld(f)
	a := w.open(Config{Anonymous: true, TokenAuthFile: w.file("tokens.csv", "abc,jane,1\n")})
	known := access.NewAuthenticator(a.Authentication)
	f.Add("Bearer eyJhbGciOiJFUzI1NiJ9.e30.x", "base64url.bearer.authorization.k8s.io.YWJj", "x")
	f.Add("Basic YTpi", "", "")
	f.Fuzz(func(t *testing.T, authorization, protocol, remote string) {
		r := httptest.NewRequest("GET", "/apis", nil)
		r.Header["Authorization"], r.Header["Sec-Websocket-Protocol"] = []string{authorization}, []string{protocol}
		r.Header["X-Remote-User"], r.Header["Connection"], r.Header["Upgrade"] = []string{remote}, []string{"Upgrade"}, []string{"websocket"}
		u, err := known.Authenticate(r)
		if err == nil && u.GetName() != "system:anonymous" && !strings.Contains(authorization, "abc") && !strings.Contains(protocol, "YWJj") {
			t.Errorf("%q %q %q is %v", authorization, protocol, remote, u)
		}
	})
}

// FuzzConfiguration: a file is refused or read, whatever is in it.
func FuzzConfiguration(f *testing.F) {
	w := newWorld(f)
	f.Add(configuration + "anonymous: {enabled: true}\n")
	f.Add(configuration + "jwt: [{issuer: {url: 'https://a', audiences: [a]}, claimMappings: {username: {expression: 'claims.sub'}}}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "authn.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, _ = New(ctx, Config{ConfigFile: file}, w.ca, w.key, &w.objects, unwritten{})
	})
}
