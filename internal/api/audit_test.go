package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/api/filters"
	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/engine/record"
)

// lockedBuffer is a buffer that the server and the test use concurrently.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// newAudit returns an Audit that writes events to out. rules are the rules of the audit policy, in YAML.
func newAudit(t testing.TB, out io.Writer, rules string) filters.Audit {
	t.Helper()
	p, err := policy.LoadPolicyFromBytes([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: " + rules))
	if err != nil {
		t.Fatal(err)
	}
	return filters.Audit{Sink: auditlog.NewBackend(out, auditlog.FormatJson, auditv1.SchemeGroupVersion),
		Policy: policy.NewPolicyRuleEvaluator(p)}
}

// withAudit returns a harness that audits requests at level Metadata, and a function that returns the events so far.
func withAudit(t *testing.T) (*harness, func() []auditv1.Event) {
	return withAuditRules(t, `[{level: Metadata}]`)
}

// withAuditRules returns a harness that audits requests by the given policy rules, and a function that returns the
// events so far.
func withAuditRules(t *testing.T, rules string) (*harness, func() []auditv1.Event) {
	t.Helper()
	var out lockedBuffer
	h := withCronTabs(t, func(c *Config) { c.Audit = newAudit(t, &out, rules) })
	return h, func() (all []auditv1.Event) {
		t.Helper()
		out.mu.Lock()
		defer out.mu.Unlock()
		for line := range strings.Lines(out.text.String()) {
			var e auditv1.Event
			if strict, err := kjson.UnmarshalStrict([]byte(line), &e); err != nil || len(strict) > 0 {
				t.Fatalf("cannot decode event %s: %v %v", line, err, strict)
			}
			all = append(all, e)
		}
		return all
	}
}

// TestAudit checks that each event has the user, user agent, verb, URI and code of the request. Events of requests
// to a deprecated version have an annotation (VER-006, VER-034).
func TestAudit(t *testing.T) {
	h, read := withAudit(t)
	const old = "/apis/stable.example.com/v1beta1/namespaces/default/crontabs"
	h.want(200, "GET", crontabs+"/a", "", "Audit-ID: plain")
	h.want(200, "GET", old+"/a", "", "Audit-ID: old", "User-Agent: old-client/0.1")
	h.want(200, "GET", old+"?limit=1", "", "Audit-ID: list")
	h.want(404, "GET", crontabs+"/nope", "", "Audit-ID: missing")
	h.want(404, "GET", "/apis/stable.example.com/v7/namespaces/default/crontabs", "", "Audit-ID: unserved")
	h.want(422, "PATCH", crontabs+"/a", `{"spec":{"replicas":"x"}}`, "Audit-ID: patch",
		"Content-Type: application/merge-patch+json")
	h.want(200, "GET", "/version", "", "Audit-ID: version")
	h.want(403, "GET", crontabs, "", "Audit-ID: as", "Impersonate-User: joe")
	h.want(200, "GET", "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions/crontabs.stable.example.com", "",
		"Audit-ID: crd")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	r := newRequest("GET", old+"?watch=1", "", "Audit-ID: watch")
	h.server.ServeHTTP(w, r.WithContext(access.WithUser(ctx,
		&user.DefaultInfo{Name: "watcher", Groups: []string{user.SystemPrivilegedGroup}})))

	got := byRequestAndStage(read())
	for name, want := range map[string]struct {
		verb, uri, message string
		code               int32
		deprecated         string
	}{
		"plain":    {"get", crontabs + "/a", "", 200, ""},
		"old":      {"get", old + "/a", "", 200, "true"},
		"list":     {"list", old + "?limit=1", "", 200, "true"},
		"missing":  {"get", crontabs + "/nope", `crontabs.stable.example.com "nope" not found`, 404, ""},
		"unserved": {"list", "/apis/stable.example.com/v7/namespaces/default/crontabs", "", 404, ""},
		"patch":    {"patch", crontabs + "/a", "", 422, ""},
		"version":  {"get", "/version", "", 200, ""},
		"as":       {"list", crontabs, "", 403, ""},
		"watch":    {"watch", old + "?watch=1", "", 200, "true"},
	} {
		e := got[name+" ResponseComplete"]
		if e.ResponseStatus == nil || e.ResponseStatus.Code != want.code ||
			e.Verb != want.verb || e.RequestURI != want.uri ||
			want.message != "" && e.ResponseStatus.Message != want.message ||
			e.Annotations["k8s.io/deprecated"] != want.deprecated {
			t.Errorf("%s: got event %+v, want %+v", name, e, want)
		}
		if (e.ObjectRef != nil) != (name != "version") ||
			e.ObjectRef != nil && (e.ObjectRef.Resource != "crontabs" || e.ObjectRef.APIGroup != "stable.example.com") {
			t.Errorf("%s: got objectRef %+v, want crontabs, or none for /version", name, e.ObjectRef)
		}
	}
	if e := got["old ResponseComplete"]; e.User.Username != user.APIServerUser || e.UserAgent != "old-client/0.1" ||
		e.StageTimestamp.Before(&e.RequestReceivedTimestamp) {
		t.Errorf("got event %+v, want its user, user agent and times", e)
	}
	if e := got["as ResponseComplete"]; e.User.Username != user.APIServerUser || e.ImpersonatedUser == nil ||
		e.ImpersonatedUser.Username != "joe" {
		t.Errorf("got event %+v, want the impersonated user joe", e)
	}
	if e := got["crd ResponseComplete"]; e.Annotations["k8s.io/removed-release"] != "1.22" {
		t.Errorf("got event %+v, want removed-release 1.22", e)
	}
	if e := got["watch ResponseStarted"]; e.ResponseStatus == nil || e.User.Username != "watcher" ||
		e.ResponseStatus.Code != 200 {
		t.Errorf("got event %+v, want code 200 for watcher", e)
	}
}

// TestAuditOfPanic checks that a request whose handler panics has an event of the stage Panic.
func TestAuditOfPanic(t *testing.T) {
	h, read := withAudit(t)
	h.server.nonResources.Discovery = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") })
	h.want(500, "GET", "/apis", "", "Audit-ID: panic")
	all := read()
	if e := all[len(all)-1]; e.Stage != auditv1.StagePanic || e.ResponseStatus.Code != 500 {
		t.Errorf("got event %+v, want stage Panic with code 500", e)
	}
}

// TestDeprecatedMetric checks that the metric of deprecated APIs counts a request to a deprecated version. Its
// label removed_release is the release that removes the version (VER-034).
func TestDeprecatedMetric(t *testing.T) {
	h := withCronTabs(t)
	const want = `apiserver_requested_deprecated_apis{group="stable.example.com",removed_release="",` +
		`resource="crontabs",subresource="",version="v1beta1"} 1`
	metrics := func() string { return h.want(200, "GET", "/metrics", "").Body.String() }
	if strings.Contains(metrics(), "apiserver_requested_deprecated_apis{") {
		t.Error("the metric has a series before any request")
	}
	h.want(200, "GET", "/apis/stable.example.com/v1beta1/namespaces/default/crontabs/a", "")
	h.want(200, "GET", "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions", "")
	got := metrics()
	for _, line := range []string{want, `apiserver_requested_deprecated_apis{group="apiextensions.k8s.io",` +
		`removed_release="1.22",resource="customresourcedefinitions",subresource="",version="v1beta1"} 1`} {
		if !strings.Contains(got, line) {
			t.Errorf("the metrics do not contain %s", line)
		}
	}
	if strings.Contains(got, `apiserver_requested_deprecated_apis{group="stable.example.com",removed_release="",`+
		`resource="crontabs",subresource="",version="v1"}`) {
		t.Error("the metric has a series for v1, which is not deprecated")
	}
}

// BenchmarkAudit measures the cost of auditing a request.
func BenchmarkAudit(b *testing.B) {
	for name, rules := range map[string]string{
		"off": "", "none": `[{level: None}]`, "metadata": `[{level: Metadata, omitStages: [RequestReceived]}]`,
		"both stages": `[{level: Metadata}]`,
		"bodies":      `[{level: RequestResponse}]`,
	} {
		b.Run(name, func(b *testing.B) {
			file := &lumberjack.Logger{Filename: filepath.Join(b.TempDir(), "audit.log"), MaxSize: 100, MaxBackups: 1}
			defer file.Close()
			h := withCronTabs(b, func(c *Config) {
				if rules != "" {
					c.Audit = newAudit(b, file, rules)
				}
			})
			r := newRequest("GET", crontabs+"/a", "")
			b.ReportAllocs()
			began := cpuTime()
			for b.Loop() {
				h.server.ServeHTTP(&discardWriter{header: http.Header{}}, r)
			}
			b.ReportMetric(float64((cpuTime()-began).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// byRequestAndStage returns a map of the events. The key is the audit ID and the stage, separated by a space.
func byRequestAndStage(all []auditv1.Event) map[string]auditv1.Event {
	out := map[string]auditv1.Event{}
	for _, e := range all {
		out[string(e.AuditID)+" "+string(e.Stage)] = e
	}
	return out
}

// TestAuditLevels checks which bodies an event contains at each level, for all formats of the response.
func TestAuditLevels(t *testing.T) {
	h, read := withAuditRules(t, `
- {level: None, verbs: [delete]}
- {level: Metadata, resources: [{group: stable.example.com, resources: [crontabs/status]}]}
- {level: Request, verbs: [patch], omitStages: [RequestReceived]}
- {level: RequestResponse, omitManagedFields: true}
`)
	protobuf := "Accept: " + runtime.ContentTypeProtobuf
	h.want(200, "PATCH", crontabs+"/a/status", `{"status":{}}`, "Audit-ID: metadata",
		"Content-Type: application/merge-patch+json")
	h.want(200, "PATCH", crontabs+"/a", `{"spec":{"replicas":7}}`, "Audit-ID: request",
		"Content-Type: application/merge-patch+json")
	h.want(201, "POST", crontabs, strings.Replace(crontabA, `"name":"a"`, `"name":"b"`, 1), "Audit-ID: post")
	h.want(200, "GET", crontabs+"/a", "", "Audit-ID: get", "Accept: application/yaml")
	h.want(200, "GET", crontabs, "", "Audit-ID: list")
	h.want(200, "GET", crontabs, "", "Audit-ID: table", "Accept: "+kubectlAccept)
	h.want(200, "GET", "/api/v1/namespaces", "", "Audit-ID: protobuf", protobuf)
	h.want(200, "GET", "/apis", "", "Audit-ID: document",
		protobuf+";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	h.want(200, "DELETE", crontabs+"/a", "", "Audit-ID: none")
	h.want(404, "GET", crontabs+"/a", "", "Audit-ID: missing")
	all := byRequestAndStage(read())
	for name, want := range map[string]struct{ request, response string }{
		"metadata": {}, "request": {`{"spec":{"replicas":7}}`, ""}, "post": {`"kind":"CronTab"`, `"uid":"`},
		"get":  {"", `{"apiVersion":"stable.example.com/v1","kind":"CronTab"`},
		"list": {"", `"kind":"CronTabList"`}, "table": {"", `"kind":"Table"`},
		"protobuf": {"", `"kind":"NamespaceList"`},
		"document": {"", `"kind":"APIGroupDiscoveryList"`}, "missing": {"", `"kind":"Status"`},
	} {
		e, ok := all[name+" ResponseComplete"]
		for _, part := range []struct {
			name, want string
			got        *runtime.Unknown
		}{{"request", want.request, e.RequestObject}, {"response", want.response, e.ResponseObject}} {
			if got := part.got; !ok || (got != nil) != (part.want != "") ||
				got != nil && !strings.Contains(string(got.Raw), part.want) {
				t.Errorf("%s: got %s %v, want %q", name, part.name, got, part.want)
			}
			if part.got != nil && strings.Contains(string(part.got.Raw), "managedFields") {
				t.Errorf("%s: got managedFields in %s", name, part.got.Raw)
			}
		}
		if _, received := all[name+" RequestReceived"]; received != (name != "request") {
			t.Errorf("%s: got a RequestReceived event: %t, want %t", name, received, !received)
		}
	}
	if e, ok := all["none ResponseComplete"]; ok {
		t.Errorf("level None: got event %+v, want none", e)
	}
	if ref := all["post ResponseComplete"].ObjectRef; ref.Name != "b" {
		t.Errorf("got objectRef %+v, want the name b from the body", ref)
	}
}

// TestAuditOfUnauthenticatedRequest checks that a request has one event if it fails during authentication or
// before. The event has no user.
func TestAuditOfUnauthenticatedRequest(t *testing.T) {
	h, read := withAudit(t)
	for id, path := range map[string]string{"invalid": crontabs, "timeout": crontabs + "?timeout=x"} {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Audit-Id", id)
		r.Header.Set("Authorization", "Bearer unknown")
		h.server.filters.Authenticator = access.NewAuthenticator(access.Authentication{Now: time.Now})
		h.server.ServeHTTP(httptest.NewRecorder(), r)
	}
	var got []string
	for _, e := range read() {
		if e.AuditID == "invalid" || e.AuditID == "timeout" {
			got = append(got, fmt.Sprint(e.AuditID, e.Stage, e.ResponseStatus.Code, e.User.Username))
		}
	}
	slices.Sort(got)
	if want := []string{"invalidResponseStarted401", "timeoutResponseStarted400"}; !slices.Equal(got, want) {
		t.Errorf("got events %q, want %q", got, want)
	}
}

// TestAuditOfAuthorization checks that the event has the decision of the authorizer and the impersonated user.
func TestAuditOfAuthorization(t *testing.T) {
	h, read := withAudit(t)
	h.want(200, "GET", crontabs, "", "Audit-ID: allowed")
	h.want(403, "GET", crontabs, "", "Audit-ID: forbidden", "Impersonate-User: joe", "Impersonate-Group: dev")
	h.server.filters.Authorizer = failingAuthorizer{}
	h.want(500, "GET", crontabs, "", "Audit-ID: error")
	all := byRequestAndStage(read())
	for id, want := range map[string]map[string]string{
		"allowed":   {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""},
		"forbidden": {"authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": ""},
		"error":     {"authorization.k8s.io/reason": "internal error"},
	} {
		if got := all[id+" ResponseComplete"].Annotations; !maps.Equal(got, want) {
			t.Errorf("%s: got annotations %q, want %q", id, got, want)
		}
	}
	if as := all["forbidden ResponseComplete"].ImpersonatedUser; as == nil || as.Username != "joe" ||
		!slices.Contains(as.Groups, "dev") {
		t.Errorf("got impersonated user %+v, want joe in group dev", as)
	}
}

// failingAuthorizer is an Authorizer that always returns an error.
type failingAuthorizer struct{}

func (failingAuthorizer) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "", errors.New("no answer")
}

// failingBackend is an audit sink that fails to store any event.
type failingBackend struct{ calls int }

func (f *failingBackend) ProcessEvents(...*auditinternal.Event) bool { f.calls++; return false }

// TestAuditBackendFails checks that a request is refused if its event cannot be stored. The server sends no second
// event.
func TestAuditBackendFails(t *testing.T) {
	h := withCronTabs(t)
	sink := &failingBackend{}
	h.server.filters.Auditing = newAudit(t, io.Discard, `[{level: Metadata}]`)
	h.server.filters.Auditing.Sink = sink
	if w := h.want(500, "GET", crontabs, ""); !strings.Contains(w.Body.String(), "failed to store audit event") ||
		sink.calls != 1 {
		t.Errorf("got %s after %d events, want an error after 1", w.Body, sink.calls)
	}
}

// TestAuditOfSlowRequest checks that the event of a slow request has annotations with the durations of its steps. The
// event of a fast request has none.
func TestAuditOfSlowRequest(t *testing.T) {
	for _, began := range []time.Time{time.Now(), time.Now().Add(-time.Hour)} {
		h, read := withAudit(t)
		f := h.server.filters
		q := &request.Request{W: httptest.NewRecorder(), Began: began,
			R: newRequest("GET", "/version", "", "Audit-Id: request")}
		f.Begin(q)
		filters.RequestInfo(q)
		q.Attributes.User = access.Loopback()
		if !f.Audit(q) || !f.Authorize(q) {
			t.Fatal("the request was refused")
		}
		filters.AuditEnd(q, nil)
		annotations := byRequestAndStage(read())["request ResponseComplete"].Annotations
		for _, step := range []string{"total", "authentication", "authorization"} {
			if _, ok := annotations["apiserver.latency.k8s.io/"+step]; ok != (time.Since(began) > time.Minute) {
				t.Errorf("got annotations %q, want %s: %t", annotations, step, !ok)
			}
		}
	}
}

// TestDisabledAuditAllocatesNothing checks that requests allocate no memory for auditing if it is disabled.
func TestDisabledAuditAllocatesNothing(t *testing.T) {
	f, q := &filters.Filters{}, &request.Request{R: newRequest("GET", "/version", "")}
	if n := testing.AllocsPerRun(100, func() {
		f.Audit(q)
		q.Annotate("a", "b")
		q.AuditStart()
		q.AuditStatus(nil)
		_ = q.AuditResponse(func() ([]byte, error) { return q.Media.AppendObject(nil, record.Object{}, nil) })
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestDocumentedPolicy checks that the policy in docs/audit.md is valid and has no unknown fields.
func TestDocumentedPolicy(t *testing.T) {
	page, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	_, from, found := strings.Cut(string(page), "```yaml\n")
	text, _, ended := strings.Cut(from, "```\n")
	if !found || !ended {
		t.Fatal("docs/audit.md has no policy")
	}
	var p auditv1.Policy
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil || len(p.Rules) != 4 {
		t.Errorf("UnmarshalStrict: %v, policy %+v, want 4 rules", err, p)
	}
	if _, err := policy.LoadPolicyFromBytes([]byte(text)); err != nil {
		t.Error(err)
	}
}
