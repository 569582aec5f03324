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

// clientCA signs certificates of clients.
type clientCA struct {
	*testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	file        string
}

func newClientCA(t *testing.T) *clientCA {
	t.Helper()
	ca := &clientCA{T: t, file: filepath.Join(t.TempDir(), "ca.crt")}
	ca.certificate, ca.key = ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true})
	if err := os.WriteFile(ca.file, ca.pem(ca.certificate), 0o600); err != nil {
		t.Fatal(err)
	}
	return ca
}

// issue signs a certificate, by itself if there is no CA yet.
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

// client is a configuration of who has a certificate for a name, and sends the header X-Remote-User unless remote is "".
func (ca *clientCA) client(s *testserver.Server, name, remote string) *rest.Config {
	ca.Helper()
	c, key := ca.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"dev"}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
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

// whoAmI is the user of a client, and the first group; "" if it is refused.
func whoAmI(t *testing.T, config *rest.Config) string {
	t.Helper()
	review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if apierrors.IsUnauthorized(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.UserInfo.Username + "/" + review.Status.UserInfo.Groups[0]
}

// AGG-040 AGG-041 AGG-042: each of the two files of client CAs is believed for what it is for, with the other or without it.
// AGG-026: what it says is in force without a restart.
func TestClientCAsAreIndependent(t *testing.T) {
	users, proxies := newClientCA(t), newClientCA(t)
	for _, c := range []struct {
		users, proxies           bool
		user, proxy, other, says string // who a user is, the front proxy, another proxy, and a user who says to be somebody
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
				config.Authentication.RequestHeader = authn.RequestHeader{CAFile: proxies.file, AllowedNames: []string{"front"}, UsernameHeaders: []string{"X-Remote-User"}}
			}
		}))
		for config, want := range map[*rest.Config]string{
			users.client(s, "joe", ""): c.user, proxies.client(s, "front", "jane"): c.proxy,
			proxies.client(s, "other", "jane"): c.other, users.client(s, "joe", "jane"): c.says,
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
		for whoAmI(t, joe) != "" || whoAmI(t, next.client(s, "ann", "")) != "ann/dev" { // until the file has been read
		}
		if got := whoAmI(t, proxies.client(s, "front", "jane")); got != c.proxy {
			t.Errorf("after a change of the other file: %q", got)
		}
	}
}
