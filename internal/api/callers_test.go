package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/trellis-k8s/trellis/internal/access"
)

// kubectlAccept and kubectlAgent are the headers that kubectl get sends.
const (
	kubectlAccept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io," +
		"application/json"
	kubectlAgent = "kubectl/v1.37.1 (linux/amd64) kubernetes/2b3f5e2"
)

// readersAuthorizer permits the group readers to read CronTabs in the namespace default. It passes other requests to
// the next Authorizer.
type readersAuthorizer struct{ access.Authorizer }

func (z readersAuthorizer) Authorize(
	ctx context.Context, a authorizer.Attributes,
) (authorizer.Decision, string, error) {
	if slices.Contains(a.GetUser().GetGroups(), "readers") && a.IsResourceRequest() && a.IsReadOnly() &&
		a.GetAPIGroup() == "stable.example.com" && a.GetResource() == "crontabs" && a.GetSubresource() == "" &&
		a.GetNamespace() == "default" {
		return authorizer.DecisionAllow, "", nil
	}
	return z.Authorizer.Authorize(ctx, a)
}

// updatersAuthorizer permits the group updaters to update and patch all objects but not to create any. For a create
// it returns the error in its field err.
type updatersAuthorizer struct {
	access.Authorizer
	err error
}

func (z *updatersAuthorizer) Authorize(
	ctx context.Context, a authorizer.Attributes,
) (authorizer.Decision, string, error) {
	if slices.Contains(a.GetUser().GetGroups(), "updaters") {
		switch a.GetVerb() {
		case "update", "patch":
			return authorizer.DecisionAllow, "", nil
		case "create":
			return authorizer.DecisionNoOpinion, "", z.err
		}
	}
	return z.Authorizer.Authorize(ctx, a)
}

// TestCreateByUpdateIsAuthorized checks that an update or an apply of an object that does not exist needs the right
// to create it. The server reports validation errors before it checks this right.
func TestCreateByUpdateIsAuthorized(t *testing.T) {
	z := &updatersAuthorizer{}
	h := withCronTabs(t, func(c *Config) { z.Authorizer, c.Authorizer = c.Authorizer, z })
	as := func(code int, method, path, body, want string, headers ...string) {
		t.Helper()
		r := newRequest(method, path, body, headers...)
		w := httptest.NewRecorder()
		h.server.ServeHTTP(w, r.WithContext(access.WithUser(r.Context(),
			&user.DefaultInfo{Name: "u", Groups: []string{"updaters"}})))
		if w.Code != code || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s %s:\n got %d %s\nwant %d %s", method, path, w.Code, w.Body, code, want)
		}
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	const lease = `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l"},` +
		`"spec":{"leaseDurationSeconds":1}}`
	const refused = `"message":"%s is forbidden: User \"u\" cannot create resource \"%s\" in API group \"%s\" in ` +
		`the namespace \"default\"","reason":"Forbidden"`
	const applied = "Content-Type: application/apply-patch+yaml"
	noLease := fmt.Sprintf(refused, `leases.coordination.k8s.io \"l\"`, "leases", "coordination.k8s.io")
	as(422, "PUT", leases+"/l", strings.Replace(lease, ":1}", ":-1}", 1), "must be greater than 0")
	as(403, "PUT", leases+"/l", lease, noLease)
	as(403, "PUT", leases+"/l?dryRun=All", lease, noLease)
	as(403, "PATCH", leases+"/l?fieldManager=m", lease, noLease, applied)
	as(403, "PATCH", crontabs+"/b?fieldManager=m", strings.Replace(crontabA, `"a"`, `"b"`, 1),
		fmt.Sprintf(refused, `crontabs.stable.example.com \"b\"`, "crontabs", "stable.example.com"), applied)
	as(404, "PATCH", leases+"/l", `{}`, "not found", "Content-Type: application/merge-patch+json")
	z.err = errors.New("it is down")
	as(500, "PUT", leases+"/l", lease, "Internal error occurred: it is down")
	h.want(http.StatusNotFound, "GET", leases+"/l", "")
	h.want(http.StatusCreated, "PUT", leases+"/l", lease)
	as(200, "PATCH", leases+"/l?fieldManager=m", lease, "", applied)
	as(200, "PATCH", crontabs+"/a?fieldManager=m&force=true", crontabA, "", applied)
}

// caller is a client with a certificate and a separate connection.
type caller struct {
	certificate *x509.Certificate
	connection  context.Context
}

func newCaller(t testing.TB, name, group string) *caller {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	self := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: []string{group}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, self, self, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &caller{c, access.ConnContext(t.Context(), nil)}
}

// get returns a GET request. If accept is "", it accepts JSON, as client-go does.
func (c *caller) get(path, accept string) *http.Request {
	r := httptest.NewRequest("GET", path, nil)
	if accept == "" {
		accept = runtime.ContentTypeJSON
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("Accept-Encoding", "gzip")
	r.Header.Set("User-Agent", kubectlAgent)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.certificate}}
	return r.WithContext(c.connection)
}

// withCallers returns a server that trusts the certificates of an administrator and a reader.
func withCallers(t testing.TB) (h *harness, admin, reader *caller) {
	t.Helper()
	admin, reader = newCaller(t, "root", user.SystemPrivilegedGroup), newCaller(t, "jane", "readers")
	var trusted []byte
	for _, c := range []*caller{admin, reader} {
		trusted = append(trusted, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.certificate.Raw})...)
	}
	content, err := dynamiccertificates.NewStaticCAContent("callers", trusted)
	if err != nil {
		t.Fatal(err)
	}
	h = withCronTabs(t, func(c *Config) {
		c.Authenticator = access.NewAuthenticator(access.Authentication{ClientCAs: access.NewCAPool(content),
			Now: time.Now})
		c.Authorizer = readersAuthorizer{c.Authorizer}
	})
	return h, admin, reader
}

// TestReaderGetsSameResponse checks that a reader and an administrator get the same body and headers, in all formats.
// The reader gets 403 for all other resources.
func TestReaderGetsSameResponse(t *testing.T) {
	h, admin, reader := withCallers(t)
	for _, accept := range []string{
		"", "*/*", kubectlAccept, "application/yaml", "application/json;pretty=1",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf",
		"text/html",
	} {
		for _, path := range []string{crontabs + "/a", crontabs, crontabs + "/none", crontabs + "/a?resourceVersion=0",
			crontabs + "?limit=1&timeout=1m"} {
			want, got := serve(h, admin.get(path, accept)), serve(h, reader.get(path, accept))
			want.Header().Del("Audit-Id")
			got.Header().Del("Audit-Id")
			if got.Code != want.Code || got.Body.String() != want.Body.String() ||
				!slices.Equal(headerLines(got), headerLines(want)) {
				t.Errorf("%s as %q:\n got %d %v %s\nwant %d %v %s", path, accept, got.Code, got.Header(), got.Body,
					want.Code, want.Header(), want.Body)
			}
		}
	}
	for _, path := range []string{"/api/v1/namespaces/default/configmaps/a", crontabs + "/a/status",
		strings.Replace(crontabs, "default", "other", 1), "/metrics"} {
		if w := serve(h, reader.get(path, "")); w.Code != http.StatusForbidden {
			t.Errorf("%s: got %d %s, want 403", path, w.Code, w.Body)
		}
	}
}

// headerLines returns the sorted lines of the header.
func headerLines(w *httptest.ResponseRecorder) (lines []string) {
	for name, values := range w.Header() {
		lines = append(lines, name+": "+strings.Join(values, ", "))
	}
	slices.Sort(lines)
	return lines
}

// TestDecisionsAsUpstream checks that the server calls the Authorizer with the same attributes as upstream does.
// Each decision leads to the same response as upstream's (CRD-069).
func TestDecisionsAsUpstream(t *testing.T) {
	type attributes struct {
		user, verb, group, version, resource, subresource, namespace, name, path string
		readOnly, ofResource                                                     bool
	}
	var calls []attributes
	decision := func() (authorizer.Decision, string, error) { return authorizer.DecisionAllow, "", nil }
	recorder := authorizer.AuthorizerFunc(func(
		_ context.Context, a authorizer.Attributes,
	) (authorizer.Decision, string, error) {
		calls = append(calls, attributes{a.GetUser().GetName(), a.GetVerb(),
			a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(), a.GetSubresource(),
			a.GetNamespace(), a.GetName(), a.GetPath(), a.IsReadOnly(), a.IsResourceRequest()})
		return decision()
	})
	var z authorizer.Authorizer = authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	h := withCronTabs(t, func(c *Config) {
		c.Authorizer = authorizer.AuthorizerFunc(func(
			ctx context.Context, a authorizer.Attributes,
		) (authorizer.Decision, string, error) {
			return z.Authorize(ctx, a)
		})
	})
	z = recorder
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	ok := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusOK) })
	upstream := filters.WithAuthorization(ok, recorder, codecs)
	info := apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api")}
	for _, path := range []string{crontabs + "/a", crontabs, crontabs + "?watch=0", crontabs + "/a/status",
		"/apis/stable.example.com/v1/crontabs", "/version"} {
		for name, f := range map[string]func() (authorizer.Decision, string, error){
			"allowed": func() (authorizer.Decision, string, error) { return authorizer.DecisionAllow, "so", nil },
			"allowed with an error": func() (authorizer.Decision, string, error) {
				return authorizer.DecisionAllow, "", errors.New("a role is missing")
			},
			"denied": func() (authorizer.Decision, string, error) {
				return authorizer.DecisionDeny, "no <way>", nil
			},
			"no opinion": func() (authorizer.Decision, string, error) { return authorizer.DecisionNoOpinion, "", nil },
			"broken": func() (authorizer.Decision, string, error) {
				return authorizer.DecisionNoOpinion, "", errors.New("it is <down>")
			},
		} {
			decision, calls = f, nil
			r := newRequest("GET", path, "")
			r.RequestURI = path
			got := serve(h, r)
			ri, err := info.NewRequestInfo(r)
			if err != nil {
				t.Fatal(err)
			}
			want := httptest.NewRecorder()
			ctx := apirequest.WithUser(r.Context(), access.Loopback())
			upstream.ServeHTTP(want, r.WithContext(apirequest.WithRequestInfo(ctx, ri)))
			if len(calls) != 2 || calls[0] != calls[1] {
				t.Errorf("%s %s: got calls of the Authorizer %+v, want two equal ones", path, name, calls)
			}
			if want.Code == http.StatusOK && got.Code == want.Code {
				continue
			}
			if got.Code != want.Code || message(got) != message(want) ||
				got.Header().Get("X-Content-Type-Options") != want.Header().Get("X-Content-Type-Options") {
				t.Errorf("%s %s:\n got %d %s\nwant %d %s", path, name, got.Code, got.Body, want.Code, want.Body)
			}
		}
	}
}

// TestImpersonationIsAuthorized checks that the user and each group of an impersonation are authorized separately.
func TestImpersonationIsAuthorized(t *testing.T) {
	var authorized []string
	z := authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	h := withCronTabs(t, func(c *Config) {
		c.Authorizer = authorizer.AuthorizerFunc(func(
			ctx context.Context, a authorizer.Attributes,
		) (authorizer.Decision, string, error) {
			switch verb := a.GetVerb(); {
			case strings.HasPrefix(verb, "impersonate:"), strings.HasPrefix(verb, "impersonate-on:"):
				// No user has the rights of constrained impersonation.
				return authorizer.DecisionNoOpinion, "", nil
			case verb != "impersonate":
				return z.Authorize(ctx, a)
			}
			authorized = append(authorized, a.GetResource()+"/"+a.GetName())
			switch a.GetName() {
			case "secret":
				return authorizer.DecisionNoOpinion, "not that group", nil
			case "odd":
				return authorizer.DecisionAllow, "", apierrors.NewBadRequest("it is down")
			}
			return authorizer.DecisionAllow, "", nil
		})
	})
	h.want(200, "GET", crontabs+"/a", "", "Impersonate-User: joe", "Impersonate-Group: system:masters")
	if want := []string{"users/joe", "groups/system:masters"}; !slices.Equal(authorized, want) {
		t.Errorf("got authorized resources %v, want %v", authorized, want)
	}
	h.wantError(403, `groups "secret" is forbidden: User "system:apiserver" cannot impersonate resource "groups" in `+
		`API group "" at the cluster scope: not that group`,
		"GET", crontabs+"/a", "", "Impersonate-User: joe", "Impersonate-Group: secret")
	// Like upstream, the server ignores an error of the Authorizer if its decision is to allow.
	h.want(200, "GET", crontabs+"/a", "", "Impersonate-User: odd", "Impersonate-Group: system:masters")
}
