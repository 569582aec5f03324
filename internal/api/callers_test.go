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

// Accept and User-Agent as kubectl get sends them.
const (
	kubectlAccept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
	kubectlAgent  = "kubectl/v1.37.1 (linux/amd64) kubernetes/2b3f5e2"
)

// readersAuthorizer lets one group read one kind in one namespace, as a rule of RBAC would, and leaves the rest to another one.
type readersAuthorizer struct{ access.Authorizer }

func (z readersAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if slices.Contains(a.GetUser().GetGroups(), "readers") && a.IsResourceRequest() && a.IsReadOnly() &&
		a.GetAPIGroup() == "stable.example.com" && a.GetResource() == "crontabs" && a.GetSubresource() == "" && a.GetNamespace() == "default" {
		return authorizer.DecisionAllow, "", nil
	}
	return z.Authorizer.Authorize(ctx, a)
}

// updatersAuthorizer lets one group update and patch everything, but create nothing.
type updatersAuthorizer struct {
	access.Authorizer
	failing error
}

func (z *updatersAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if slices.Contains(a.GetUser().GetGroups(), "updaters") {
		switch a.GetVerb() {
		case "update", "patch":
			return authorizer.DecisionAllow, "", nil
		case "create":
			return authorizer.DecisionNoOpinion, "", z.failing
		}
	}
	return z.Authorizer.Authorize(ctx, a)
}

// Who updates or applies what is not there has to be allowed to create it, too. What is invalid is refused before that is asked.
func TestCreateByUpdateIsAuthorized(t *testing.T) {
	z := &updatersAuthorizer{}
	h := withCronTabs(t, func(c *Config) { z.Authorizer, c.Authorizer = c.Authorizer, z })
	as := func(code int, method, path, body, says string, headers ...string) {
		t.Helper()
		r := newRequest(method, path, body, headers...)
		w := httptest.NewRecorder()
		h.server.ServeHTTP(w, r.WithContext(access.WithUser(r.Context(), &user.DefaultInfo{Name: "u", Groups: []string{"updaters"}})))
		if w.Code != code || !strings.Contains(w.Body.String(), says) {
			t.Errorf("%s %s: %d %s\nwant %d %s", method, path, w.Code, w.Body, code, says)
		}
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	const lease = `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l"},"spec":{"leaseDurationSeconds":1}}`
	const refused = `"message":"%s is forbidden: User \"u\" cannot create resource \"%s\" in API group \"%s\" in the namespace \"default\"","reason":"Forbidden"`
	const applied = "Content-Type: application/apply-patch+yaml"
	noLease := fmt.Sprintf(refused, `leases.coordination.k8s.io \"l\"`, "leases", "coordination.k8s.io")
	as(422, "PUT", leases+"/l", strings.Replace(lease, ":1}", ":-1}", 1), "must be greater than 0")
	as(403, "PUT", leases+"/l", lease, noLease)
	as(403, "PUT", leases+"/l?dryRun=All", lease, noLease)
	as(403, "PATCH", leases+"/l?fieldManager=m", lease, noLease, applied)
	as(403, "PATCH", crontabs+"/b?fieldManager=m", strings.Replace(crontabA, `"a"`, `"b"`, 1), fmt.Sprintf(refused, `crontabs.stable.example.com \"b\"`, "crontabs", "stable.example.com"), applied)
	as(404, "PATCH", leases+"/l", `{}`, "not found", "Content-Type: application/merge-patch+json")
	z.failing = errors.New("it is down")
	as(500, "PUT", leases+"/l", lease, "Internal error occurred: it is down")
	h.want(http.StatusNotFound, "GET", leases+"/l", "")
	h.want(http.StatusCreated, "PUT", leases+"/l", lease)
	as(200, "PATCH", leases+"/l?fieldManager=m", lease, "", applied)
	as(200, "PATCH", crontabs+"/a?fieldManager=m&force=true", crontabA, "", applied)
}

// caller is somebody with a client certificate on a connection of their own.
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
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
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

// get is a request for one object; accept "" stands for what client-go sends, JSON.
func (c *caller) get(path, accept string) *http.Request {
	r := httptest.NewRequest("GET", path, nil)
	if accept == "" {
		accept = mediaJSON
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("Accept-Encoding", "gzip")
	r.Header.Set("User-Agent", kubectlAgent)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.certificate}}
	return r.WithContext(c.connection)
}

// withCallers is a server that trusts an administrator and a reader.
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
		c.Authenticator = access.NewAuthenticator(access.Authentication{ClientCAs: access.NewCAPool(content), Now: time.Now})
		c.Authorizer = readersAuthorizer{c.Authorizer}
	})
	return h, admin, reader
}

// A reader gets what an administrator gets, byte for byte and header for header, in every form, and nothing else.
func TestReaderGetsSameResponse(t *testing.T) {
	h, admin, reader := withCallers(t)
	for _, accept := range []string{
		"", "*/*", kubectlAccept, "application/yaml", "application/json;pretty=1",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf", "text/html",
	} {
		for _, path := range []string{crontabs + "/a", crontabs, crontabs + "/none", crontabs + "/a?resourceVersion=0", crontabs + "?limit=1&timeout=1m"} {
			want, got := serve(h, admin.get(path, accept)), serve(h, reader.get(path, accept))
			want.Header().Del("Audit-Id")
			got.Header().Del("Audit-Id")
			if got.Code != want.Code || got.Body.String() != want.Body.String() || !slices.Equal(headerLines(got), headerLines(want)) {
				t.Errorf("%s as %q:\n got %d %v %s\nwant %d %v %s", path, accept, got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
			}
		}
	}
	for _, path := range []string{"/api/v1/namespaces/default/configmaps/a", crontabs + "/a/status", strings.Replace(crontabs, "default", "other", 1), "/metrics"} {
		if w := serve(h, reader.get(path, "")); w.Code != http.StatusForbidden {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func headerLines(w *httptest.ResponseRecorder) (lines []string) {
	for name, values := range w.Header() {
		lines = append(lines, name+": "+strings.Join(values, ", "))
	}
	slices.Sort(lines)
	return lines
}

// CRD-069: what an Authorizer is asked, and what becomes of its answer, is as upstream has it.
func TestDecisionsAsUpstream(t *testing.T) {
	type seen struct {
		user, verb, group, version, resource, subresource, namespace, name, path string
		readOnly, ofResource                                                     bool
	}
	var asked []seen
	answer := func() (authorizer.Decision, string, error) { return authorizer.DecisionAllow, "", nil }
	decide := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		asked = append(asked, seen{a.GetUser().GetName(), a.GetVerb(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(), a.GetSubresource(),
			a.GetNamespace(), a.GetName(), a.GetPath(), a.IsReadOnly(), a.IsResourceRequest()})
		return answer()
	})
	var z authorizer.Authorizer = authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	h := withCronTabs(t, func(c *Config) {
		c.Authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			return z.Authorize(ctx, a)
		})
	})
	z = decide
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	oracle := filters.WithAuthorization(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusOK) }), decide, codecs)
	info := apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	for _, path := range []string{crontabs + "/a", crontabs, crontabs + "?watch=0", crontabs + "/a/status", "/apis/stable.example.com/v1/crontabs", "/version"} {
		for what, f := range map[string]func() (authorizer.Decision, string, error){
			"allowed": func() (authorizer.Decision, string, error) { return authorizer.DecisionAllow, "so", nil },
			"allowed for all that": func() (authorizer.Decision, string, error) {
				return authorizer.DecisionAllow, "", errors.New("a role is missing")
			},
			"denied":     func() (authorizer.Decision, string, error) { return authorizer.DecisionDeny, "no <way>", nil },
			"no opinion": func() (authorizer.Decision, string, error) { return authorizer.DecisionNoOpinion, "", nil },
			"broken": func() (authorizer.Decision, string, error) {
				return authorizer.DecisionNoOpinion, "", errors.New("it is <down>")
			},
		} {
			answer, asked = f, nil
			r := newRequest("GET", path, "")
			r.RequestURI = path
			got := serve(h, r)
			ri, err := info.NewRequestInfo(r)
			if err != nil {
				t.Fatal(err)
			}
			want := httptest.NewRecorder()
			oracle.ServeHTTP(want, r.WithContext(apirequest.WithRequestInfo(apirequest.WithUser(r.Context(), access.Loopback()), ri)))
			if len(asked) != 2 || asked[0] != asked[1] {
				t.Errorf("%s %s: asked\n%+v", path, what, asked)
			}
			if want.Code == http.StatusOK && got.Code == want.Code {
				continue
			}
			if got.Code != want.Code || message(got) != message(want) || got.Header().Get("X-Content-Type-Options") != want.Header().Get("X-Content-Type-Options") {
				t.Errorf("%s %s:\n got %d %s\nwant %d %s", path, what, got.Code, got.Body, want.Code, want.Body)
			}
		}
	}
}

// An Authorizer has the last word on each part of whom somebody wants to be.
func TestImpersonationIsAuthorized(t *testing.T) {
	var wanted []string
	z := authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	h := withCronTabs(t, func(c *Config) {
		c.Authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			switch verb := a.GetVerb(); {
			case strings.HasPrefix(verb, "impersonate:"), strings.HasPrefix(verb, "impersonate-on:"): // nobody has constrained rights
				return authorizer.DecisionNoOpinion, "", nil
			case verb != "impersonate":
				return z.Authorize(ctx, a)
			}
			wanted = append(wanted, a.GetResource()+"/"+a.GetName())
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
	if want := []string{"users/joe", "groups/system:masters"}; !slices.Equal(wanted, want) {
		t.Errorf("%v, want %v", wanted, want)
	}
	h.wantError(403, `groups "secret" is forbidden: User "system:apiserver" cannot impersonate resource "groups" in API group "" at the cluster scope: not that group`,
		"GET", crontabs+"/a", "", "Impersonate-User: joe", "Impersonate-Group: secret")
	h.want(200, "GET", crontabs+"/a", "", "Impersonate-User: odd", "Impersonate-Group: system:masters") // allowed for all that went wrong, as upstream has it
}
