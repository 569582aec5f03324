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

// noRetry sends a review only once.
var noRetry = wait.Backoff{Steps: 1}

func newBundle(t *testing.T) (*pki.Bundle, *x509.Certificate) {
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

// mainConfigMap returns the ConfigMap of a main server.
func mainConfigMap(b *pki.Bundle, names string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
		Data: map[string]string{
			"client-ca-file":                     string(b.CAPEM),
			"requestheader-client-ca-file":       string(b.ProxyCAPEM),
			"requestheader-allowed-names":        names,
			"requestheader-username-headers":     `["X-Username"]`,
			"requestheader-group-headers":        `["X-Groups"]`,
			"requestheader-extra-headers-prefix": `["X-Scopes-"]`,
		},
	}
}

func newAuthenticator(t *testing.T, c delegated.Config, client kubernetes.Interface) (*access.Authenticator, error) {
	t.Helper()
	a, err := delegated.NewAuthentication(t.Context(), t.Context(), c, client, noRetry, slog.New(slog.DiscardHandler))
	return access.NewAuthenticator(a), err
}

// authenticate authenticates a request with a client certificate and headers. connection is the context of its
// connection.
func authenticate(
	a *access.Authenticator, connection context.Context, c *x509.Certificate, headers ...string,
) (user.Info, error) {
	r := httptest.NewRequestWithContext(connection, http.MethodGet, "https://server/apis", nil)
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

func expect(t *testing.T, name, want string, u user.Info, err error) {
	t.Helper()
	got := "401"
	if !apierrors.IsUnauthorized(err) {
		got = fmt.Sprint(u.GetName(), u.GetGroups(), u.GetExtra())
	}
	if got != want {
		t.Errorf("%s: got %s (%v), want %s", name, got, err, want)
	}
}

// TestConfigMap checks that the CAs and the front proxy are configured from the ConfigMap, and that changes of the
// ConfigMap take effect. AGG-012, AGG-024, AGG-027 to AGG-031, AGG-033
func TestConfigMap(t *testing.T) {
	b, admin := newBundle(t)
	other, otherAdmin := newBundle(t)
	client := fake.NewClientset(mainConfigMap(b, `["front-proxy-client"]`))
	a, err := newAuthenticator(t, delegated.Config{}, client)
	if err != nil {
		t.Fatal(err)
	}
	connection := access.ConnContext(t.Context(), nil)
	proxied := func() (user.Info, error) {
		return authenticate(a, connection, b.ProxyClient.Leaf, "X-Username", "jane", "X-Groups", "dev",
			"X-Scopes-Scope", "all")
	}
	u, err := proxied()
	const jane = "jane[dev system:authenticated] map[scope:[all]]"
	expect(t, "user in headers of the main server", jane, u, err)
	u, err = authenticate(a, access.ConnContext(t.Context(), nil), b.ProxyClient.Leaf, "X-Remote-User", "jane")
	expect(t, "user in a header that is not in the ConfigMap", "401", u, err)
	u, err = authenticate(a, t.Context(), nil, "X-Username", "jane")
	expect(t, "headers without a certificate", "system:anonymous[system:unauthenticated] map[]", u, err)
	u, err = authenticate(a, t.Context(), other.ProxyClient.Leaf, "X-Username", "jane")
	expect(t, "front proxy certificate of another CA", "401", u, err)
	u, err = authenticate(a, t.Context(), admin)
	if err != nil || u.GetName() != "kubernetes-admin" || !slices.Contains(u.GetGroups(), "system:masters") {
		t.Errorf("client certificate: %v %v", u, err)
	}
	u, err = authenticate(a, t.Context(), otherAdmin)
	expect(t, "client certificate of another CA", "401", u, err)

	update := func(c *corev1.ConfigMap) {
		t.Helper()
		_, err := client.CoreV1().ConfigMaps("kube-system").Update(t.Context(), c, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ names, want string }{{`["other"]`, "401"}, {`[]`, jane}} {
		update(mainConfigMap(b, c.names))
		waitFor(t, func() bool {
			u, err := proxied()
			return err != nil && c.want == "401" || err == nil && u.GetName() == "jane" && c.want == jane
		})
	}
	update(mainConfigMap(other, `[]`))
	waitFor(t, func() bool { _, err := proxied(); return apierrors.IsUnauthorized(err) })
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	check := func(context.Context) (bool, error) { return condition(), nil }
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, check); err != nil {
		t.Fatal(err)
	}
}

// TestFlags checks that a value that a flag sets is not looked up in the ConfigMap. AGG-032
func TestFlags(t *testing.T) {
	b, admin := newBundle(t)
	other, _ := newBundle(t)
	dir := t.TempDir()
	file := func(name string, pem []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c := delegated.Config{ClientCAFile: file("ca.crt", b.CAPEM)}
	c.RequestHeader = delegated.RequestHeader{
		CAFile: file("proxy.crt", b.ProxyCAPEM), UsernameHeaders: []string{"X-Flag"}, AllowedNames: []string{
			"front-proxy-client",
		},
	}
	client := fake.NewClientset(mainConfigMap(other, `[]`))
	a, err := newAuthenticator(t, c, client)
	if err != nil {
		t.Fatal(err)
	}
	u, err := authenticate(a, t.Context(), b.ProxyClient.Leaf, "X-Flag", "jane")
	expect(t, "front proxy of the flags", "jane[system:authenticated] map[]", u, err)
	u, err = authenticate(a, t.Context(), admin)
	if err != nil || u.GetName() != "kubernetes-admin" {
		t.Errorf("%v %v", u, err)
	}
	if actions := client.Actions(); len(actions) > 0 {
		t.Errorf("got requests to the main server: %v", actions)
	}
	c.RequestHeader = delegated.RequestHeader{} // the ConfigMap now supplies the front proxy
	if a, err = newAuthenticator(t, c, client); err != nil {
		t.Fatal(err)
	}
	client.Fake.ClearActions()
	c.SkipLookup = true
	skipping, err := newAuthenticator(t, c, client)
	if err != nil {
		t.Fatal(err)
	}
	u, err = authenticate(skipping, t.Context(), other.ProxyClient.Leaf, "X-Username", "jane")
	expect(t, "front proxy of the ConfigMap without a lookup", "401", u, err)
	u, err = authenticate(a, t.Context(), other.ProxyClient.Leaf, "X-Username", "jane")
	expect(t, "front proxy of the ConfigMap", "jane[system:authenticated] map[]", u, err)
	if _, err := authenticate(a, t.Context(), admin); err != nil {
		t.Error(err)
	}
}

// TestLookupFailure checks that a failed lookup returns an error with the missing permission, unless failures are
// tolerated. EXT-015, EXT-026
func TestLookupFailure(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "extension-apiserver-authentication",
			errors.New("no"))
	})
	_, err := newAuthenticator(t, delegated.Config{}, client)
	const hint = "--role=extension-apiserver-authentication-reader"
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), hint) {
		t.Errorf("got %v, want Forbidden with the hint %q", err, hint)
	}
	a, err := newAuthenticator(t, delegated.Config{TolerateLookupFailure: true}, client)
	if err != nil {
		t.Fatal(err)
	}
	u, err := authenticate(a, t.Context(), nil)
	expect(t, "failed lookup tolerated", "system:anonymous[system:unauthenticated] map[]", u, err)
}

// reviewer returns a client of a main server that only answers reviews. review sets the status of a review. If it
// returns an error, the server responds with a 500.
func reviewer[T any](t *testing.T, review func(*T) error) kubernetes.Interface {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body T
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Method != http.MethodPost {
			http.NotFound(w, r)
		} else if err := review(&body); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		} else {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(body)
		}
	}))
	t.Cleanup(s.Close)
	return kubernetes.NewForConfigOrDie(&rest.Config{
		Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
}

// TestTokens checks that tokens are authenticated by TokenReviews. AGG-033
func TestTokens(t *testing.T) {
	a, err := newAuthenticator(t, delegated.Config{SkipLookup: true},
		reviewer(t, func(r *authenticationv1.TokenReview) error {
			r.Status.Authenticated = r.Spec.Token == "good"
			r.Status.User.Username = "robot"
			return nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	u, err := authenticate(a, t.Context(), nil, "Authorization", "Bearer good")
	expect(t, "accepted token", "robot[system:authenticated] map[]", u, err)
	u, err = authenticate(a, t.Context(), nil, "Authorization", "Bearer bad")
	expect(t, "rejected token", "401", u, err)
}

// TestAuthorizer checks that the main server authorizes requests, and that no request is allowed if it does not
// respond. AGG-034, AGG-036, AGG-039
func TestAuthorizer(t *testing.T) {
	reviews, fails := 0, false
	client := reviewer(t, func(r *authorizationv1.SubjectAccessReview) error {
		if reviews++; fails {
			return errors.New("unavailable")
		}
		r.Status.Allowed = r.Spec.User == "jane" && r.Spec.Groups[0] == "dev" &&
			r.Spec.ResourceAttributes.Resource == "flunders"
		return nil
	})
	a, err := delegated.NewAuthorizer(client, noRetry)
	if err != nil {
		t.Fatal(err)
	}
	authorize := func(name, group string, attributes access.Attributes) (authorizer.Decision, error) {
		attributes.User = &user.DefaultInfo{Name: name, Groups: []string{group}}
		decision, _, err := a.Authorize(t.Context(), &attributes)
		return decision, err
	}
	flunders := access.Attributes{
		Verb: "get", Resource: true, Group: "wardle.example.com", Version: "v1alpha1", Plural: "flunders",
	}
	for range 2 {
		if d, err := authorize("jane", "dev", flunders); d != authorizer.DecisionAllow || err != nil {
			t.Error(d, err)
		}
	}
	if reviews != 1 {
		t.Errorf("got %d reviews within 10 s, want 1", reviews)
	}
	if d, err := authorize("bob", "dev", flunders); d == authorizer.DecisionAllow || err != nil {
		t.Error(d, err)
	}
	fails = true
	if d, err := authorize("carol", "dev", flunders); d == authorizer.DecisionAllow || err == nil {
		t.Errorf("main server unavailable: %v %v", d, err)
	}
	for _, path := range []string{"/healthz", "/readyz", "/livez"} {
		if d, err := authorize("system:anonymous", "system:unauthenticated",
			access.Attributes{Verb: "get", Path: path}); d != authorizer.DecisionAllow {
			t.Error(path, d, err)
		}
	}
	if d, err := authorize("admin", "system:masters", flunders); d != authorizer.DecisionAllow {
		t.Error(d, err)
	}
}
