package delegated_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/delegated"
	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// once asks the main server once.
var once = wait.Backoff{Steps: 1}

func keys(t *testing.T) (*pki.Bundle, *x509.Certificate) {
	t.Helper()
	b, err := pki.Ensure("", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	admin, err := tls.X509KeyPair(b.AdminCert, b.AdminKey)
	if err != nil {
		t.Fatal(err)
	}
	return b, admin.Leaf
}

// trusting is the ConfigMap of a main server.
func trusting(b *pki.Bundle, names string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, Data: map[string]string{
		"client-ca-file": string(b.CAPEM), "requestheader-client-ca-file": string(b.ProxyCAPEM), "requestheader-allowed-names": names,
		"requestheader-username-headers": `["X-Who"]`, "requestheader-group-headers": `["X-Crowd"]`, "requestheader-extra-headers-prefix": `["X-More-"]`,
	}}
}

func authenticator(t *testing.T, c delegated.Config, client kubernetes.Interface) (*access.Authenticator, error) {
	t.Helper()
	a, err := delegated.NewAuthentication(t.Context(), t.Context(), c, client, once, slog.New(slog.DiscardHandler))
	return access.NewAuthenticator(a), err
}

// who asks with a certificate and headers, over one connection.
func who(a *access.Authenticator, connection context.Context, c *x509.Certificate, headers ...string) (user.Info, error) {
	r := httptest.NewRequestWithContext(connection, http.MethodGet, "https://it/apis", nil)
	if c == nil {
		r.TLS.PeerCertificates = nil
	} else {
		r.TLS.PeerCertificates = []*x509.Certificate{c}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return a.Authenticate(r)
}

func expect(t *testing.T, what, want string, u user.Info, err error) {
	t.Helper()
	got := "401"
	if !apierrors.IsUnauthorized(err) {
		got = fmt.Sprint(u.GetName(), u.GetGroups(), u.GetExtra())
	}
	if got != want {
		t.Errorf("%s: %s (%v), want %s", what, got, err, want)
	}
}

// AGG-012, AGG-024, AGG-027 to AGG-031, AGG-033
func TestConfigMap(t *testing.T) {
	b, admin := keys(t)
	others, stranger := keys(t)
	client := fake.NewClientset(trusting(b, `["front-proxy-client"]`))
	a, err := authenticator(t, delegated.Config{}, client)
	if err != nil {
		t.Fatal(err)
	}
	connection := access.ConnContext(t.Context(), nil)
	proxied := func() (user.Info, error) {
		return who(a, connection, b.ProxyClient.Leaf, "X-Who", "jane", "X-Crowd", "dev", "X-More-Scope", "all")
	}
	u, err := proxied()
	const jane = "jane[dev system:authenticated] map[scope:[all]]"
	expect(t, "the main server", jane, u, err)
	u, err = who(a, access.ConnContext(t.Context(), nil), b.ProxyClient.Leaf, "X-Remote-User", "jane")
	expect(t, "headers that the ConfigMap does not name", "401", u, err)
	u, err = who(a, t.Context(), nil, "X-Who", "jane")
	expect(t, "headers alone", "system:anonymous[system:unauthenticated] map[]", u, err)
	u, err = who(a, t.Context(), others.ProxyClient.Leaf, "X-Who", "jane")
	expect(t, "the client of another CA", "401", u, err)
	u, err = who(a, t.Context(), admin)
	if err != nil || u.GetName() != "kubernetes-admin" || !slices.Contains(u.GetGroups(), "system:masters") {
		t.Errorf("a client certificate: %v %v", u, err)
	}
	u, err = who(a, t.Context(), stranger)
	expect(t, "one of another CA", "401", u, err)

	for _, c := range []struct{ names, want string }{{`["somebody-else"]`, "401"}, {`[]`, jane}} {
		if _, err := client.CoreV1().ConfigMaps("kube-system").Update(t.Context(), trusting(b, c.names), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, func() bool {
			u, err := proxied()
			return err != nil && c.want == "401" || err == nil && u.GetName() == "jane" && c.want == jane
		})
	}
	if _, err := client.CoreV1().ConfigMaps("kube-system").Update(t.Context(), trusting(others, `[]`), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { _, err := proxied(); return apierrors.IsUnauthorized(err) })
}

func until(t *testing.T, is func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return is(), nil }); err != nil {
		t.Fatal(err)
	}
}

// AGG-032: what flags say is not looked up.
func TestFlags(t *testing.T) {
	b, admin := keys(t)
	others, _ := keys(t)
	dir := t.TempDir()
	file := func(name string, pem []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c := delegated.Config{ClientCAFile: file("ca.crt", b.CAPEM)}
	c.RequestHeader = delegated.RequestHeader{CAFile: file("proxy.crt", b.ProxyCAPEM), UsernameHeaders: []string{"X-Flag"}, AllowedNames: []string{"front-proxy-client"}}
	client := fake.NewClientset(trusting(others, `[]`))
	a, err := authenticator(t, c, client)
	if err != nil {
		t.Fatal(err)
	}
	u, err := who(a, t.Context(), b.ProxyClient.Leaf, "X-Flag", "jane")
	expect(t, "by the flags", "jane[system:authenticated] map[]", u, err)
	u, err = who(a, t.Context(), admin)
	if err != nil || u.GetName() != "kubernetes-admin" {
		t.Errorf("%v %v", u, err)
	}
	if done := client.Actions(); len(done) > 0 {
		t.Errorf("looked up: %v", done)
	}
	c.RequestHeader = delegated.RequestHeader{} // then that is the ConfigMap's
	if a, err = authenticator(t, c, client); err != nil {
		t.Fatal(err)
	}
	client.Fake.ClearActions()
	c.SkipLookup = true
	skipping, err := authenticator(t, c, client)
	if err != nil {
		t.Fatal(err)
	}
	u, err = who(skipping, t.Context(), others.ProxyClient.Leaf, "X-Who", "jane")
	expect(t, "without a lookup", "401", u, err)
	u, err = who(a, t.Context(), others.ProxyClient.Leaf, "X-Who", "jane")
	expect(t, "with one", "jane[system:authenticated] map[]", u, err)
	if _, err := who(a, t.Context(), admin); err != nil {
		t.Error(err)
	}
}

// EXT-015, EXT-026
func TestLookupFailure(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "extension-apiserver-authentication", errors.New("no"))
	})
	if _, err := authenticator(t, delegated.Config{}, client); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "--role=extension-apiserver-authentication-reader") {
		t.Error(err)
	}
	a, err := authenticator(t, delegated.Config{TolerateLookupFailure: true}, client)
	if err != nil {
		t.Fatal(err)
	}
	u, err := who(a, t.Context(), nil)
	expect(t, "tolerated", "system:anonymous[system:unauthenticated] map[]", u, err)
}

// reviewer is a main server that does nothing but review: by judge, which changes the review, or fails.
func reviewer[T any](t *testing.T, judge func(*T) error) kubernetes.Interface {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review T
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.Method != http.MethodPost {
			http.NotFound(w, r)
		} else if err := judge(&review); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		} else {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(review)
		}
	}))
	t.Cleanup(s.Close)
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
}

// AGG-033
func TestTokens(t *testing.T) {
	a, err := authenticator(t, delegated.Config{SkipLookup: true}, reviewer(t, func(r *authenticationv1.TokenReview) error {
		r.Status.Authenticated = r.Spec.Token == "good"
		r.Status.User.Username = "robot"
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	u, err := who(a, t.Context(), nil, "Authorization", "Bearer good")
	expect(t, "a token", "robot[system:authenticated] map[]", u, err)
	u, err = who(a, t.Context(), nil, "Authorization", "Bearer bad")
	expect(t, "another", "401", u, err)
}

// AGG-034, AGG-036, AGG-039: the main server decides; where it says nothing, nobody may.
func TestAuthorizer(t *testing.T) {
	reviews, fails := 0, false
	client := reviewer(t, func(r *authorizationv1.SubjectAccessReview) error {
		if reviews++; fails {
			return errors.New("out of order")
		}
		r.Status.Allowed = r.Spec.User == "jane" && r.Spec.Groups[0] == "dev" && r.Spec.ResourceAttributes.Resource == "flunders"
		return nil
	})
	a, err := delegated.NewAuthorizer(client, once)
	if err != nil {
		t.Fatal(err)
	}
	decide := func(name, group string, of access.Attributes) (authorizer.Decision, error) {
		of.User = &user.DefaultInfo{Name: name, Groups: []string{group}}
		decision, _, err := a.Authorize(t.Context(), &of)
		return decision, err
	}
	flunders := access.Attributes{Verb: "get", Resource: true, Group: "wardle.example.com", Version: "v1alpha1", Plural: "flunders"}
	for range 2 {
		if d, err := decide("jane", "dev", flunders); d != authorizer.DecisionAllow || err != nil {
			t.Error(d, err)
		}
	}
	if reviews != 1 {
		t.Errorf("asked %d times within 10 s", reviews)
	}
	if d, err := decide("bob", "dev", flunders); d == authorizer.DecisionAllow || err != nil {
		t.Error(d, err)
	}
	fails = true
	if d, err := decide("carol", "dev", flunders); d == authorizer.DecisionAllow || err == nil {
		t.Errorf("nobody answers: %v %v", d, err)
	}
	for _, path := range []string{"/healthz", "/readyz", "/livez"} {
		if d, err := decide("system:anonymous", "system:unauthenticated", access.Attributes{Verb: "get", Path: path}); d != authorizer.DecisionAllow {
			t.Error(path, d, err)
		}
	}
	if d, err := decide("admin", "system:masters", flunders); d != authorizer.DecisionAllow {
		t.Error(d, err)
	}
}
