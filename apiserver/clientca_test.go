package apiserver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/authn"
	"github.com/trellis-k8s/trellis/testserver"
)

// clientCA is a CA that signs client certificates.
type clientCA struct {
	*testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	file        string
}

func newClientCA(t *testing.T) *clientCA {
	t.Helper()
	ca := &clientCA{T: t, file: filepath.Join(t.TempDir(), "ca.crt")}
	ca.certificate, ca.key = ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true})
	if err := os.WriteFile(ca.file, ca.pem(ca.certificate), 0o600); err != nil {
		t.Fatal(err)
	}
	return ca
}

// issue creates a certificate. It is self-signed if ca has no key yet.
func (ca *clientCA) issue(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	ca.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.Fatal(err)
	}
	template.SerialNumber, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
	parent, signer := template, key
	if ca.key != nil {
		parent, signer = ca.certificate, ca.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		ca.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		ca.Fatal(err)
	}
	return c, key
}

func (ca *clientCA) pem(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// client returns the configuration of a client with a certificate for name. If remote is not "", the client sends its
// value in the header X-Remote-User.
func (ca *clientCA) client(s *testserver.Server, name, remote string) *rest.Config {
	ca.Helper()
	c, key := ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"dev"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		ca.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.CertData, config.KeyData = ca.pem(c), keyPEM
	if remote != "" {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				r.Header.Set("X-Remote-User", remote)
				return next.RoundTrip(r)
			})
		})
	}
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// whoAmI returns the user name and the first group of a client as the server authenticates it, or "" if the server
// responds 401.
func whoAmI(t *testing.T, config *rest.Config) string {
	t.Helper()
	review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if apierrors.IsUnauthorized(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.UserInfo.Username + "/" + review.Status.UserInfo.Groups[0]
}

// TestClientCAsAreIndependent checks that the CAs of --client-ca-file authenticate only users, and that the CAs of
// --requestheader-client-ca-file authenticate only front proxies. This holds if one or both of the files are
// configured. (AGG-040 AGG-041 AGG-042) A changed file takes effect without a restart. (AGG-026)
func TestClientCAsAreIndependent(t *testing.T) {
	users, proxies := newClientCA(t), newClientCA(t)
	for _, c := range []struct {
		users, proxies bool
		// identity of a user, of the front proxy, of another proxy, and of a user that sends the proxy's header
		user, proxy, other, spoofed string
	}{
		{false, false, "", "", "", ""},
		{true, false, "joe/dev", "", "", "joe/dev"},
		{false, true, "", "jane/system:authenticated", "", ""},
		{true, true, "joe/dev", "jane/system:authenticated", "", "joe/dev"},
	} {
		s := testserver.Start(t, testserver.With(func(config *apiserver.Config) {
			if c.users {
				config.Authentication.ClientCAFile = users.file
			}
			if c.proxies {
				config.Authentication.RequestHeader = authn.RequestHeader{CAFile: proxies.file,
					AllowedNames: []string{"front"}, UsernameHeaders: []string{"X-Remote-User"}}
			}
		}))
		for config, want := range map[*rest.Config]string{
			users.client(s, "joe", ""): c.user, proxies.client(s, "front", "jane"): c.proxy,
			proxies.client(s, "other", "jane"): c.other, users.client(s, "joe", "jane"): c.spoofed,
		} {
			if got := whoAmI(t, config); got != want {
				t.Errorf("with %t %t: %q, want %q", c.users, c.proxies, got, want)
			}
		}
		if !c.users || !c.proxies {
			continue
		}
		joe, next := users.client(s, "joe", ""), newClientCA(t)
		if err := os.Rename(next.file, users.file); err != nil {
			t.Fatal(err)
		}
		// until the server has reloaded the file
		for whoAmI(t, joe) != "" || whoAmI(t, next.client(s, "ann", "")) != "ann/dev" {
		}
		if got := whoAmI(t, proxies.client(s, "front", "jane")); got != c.proxy {
			t.Errorf("after a change of the other file: %q", got)
		}
	}
}
