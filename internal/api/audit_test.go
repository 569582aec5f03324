package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gopkg.in/natefinch/lumberjack.v2"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/access"
)

// log is where events go in tests.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// auditTo writes the events that rules, in YAML, ask for to out, as the server does.
func auditTo(t testing.TB, out io.Writer, rules string) Audit {
	t.Helper()
	p, err := policy.LoadPolicyFromBytes([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: " + rules))
	if err != nil {
		t.Fatal(err)
	}
	return Audit{auditlog.NewBackend(out, auditlog.FormatJson, auditv1.SchemeGroupVersion), policy.NewPolicyRuleEvaluator(p)}
}

// recorded is a harness whose requests are audited at level Metadata, and the function that reads the events.
func recorded(t *testing.T) (*harness, func() []auditv1.Event) {
	return recordedAs(t, `[{level: Metadata}]`)
}

func recordedAs(t *testing.T, rules string) (*harness, func() []auditv1.Event) {
	t.Helper()
	var out log
	h := withCronTabs(t, func(c *Config) { c.Audit = auditTo(t, &out, rules) })
	return h, func() (all []auditv1.Event) {
		t.Helper()
		out.mu.Lock()
		defer out.mu.Unlock()
		for line := range strings.Lines(out.text.String()) {
			var e auditv1.Event
			if strict, err := kjson.UnmarshalStrict([]byte(line), &e); err != nil || len(strict) > 0 {
				t.Fatalf("%s: %v %v", line, err, strict)
			}
			all = append(all, e)
		}
		return all
	}
}

// VER-006 VER-034: every request is found by user, user agent, verb, URI and code; those at a deprecated version are marked.
func TestAudit(t *testing.T) {
	h, read := recorded(t)
	const old = "/apis/stable.example.com/v1beta1/namespaces/default/crontabs"
	h.want(200, "GET", crontabs+"/a", "", "Audit-ID: plain")
	h.want(200, "GET", old+"/a", "", "Audit-ID: old", "User-Agent: old-client/0.1")
	h.want(200, "GET", old+"?limit=1", "", "Audit-ID: list")
	h.want(404, "GET", crontabs+"/nope", "", "Audit-ID: missing")
	h.want(404, "GET", "/apis/stable.example.com/v7/namespaces/default/crontabs", "", "Audit-ID: unserved")
	h.want(422, "PATCH", crontabs+"/a", `{"spec":{"replicas":"x"}}`, "Audit-ID: patch", "Content-Type: application/merge-patch+json")
	h.want(200, "GET", "/version", "", "Audit-ID: version")
	h.want(403, "GET", crontabs, "", "Audit-ID: as", "Impersonate-User: joe")
	h.want(200, "GET", "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions/crontabs.stable.example.com", "", "Audit-ID: crd")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	r := newRequest("GET", old+"?watch=1", "", "Audit-ID: watch")
	h.server.ServeHTTP(w, r.WithContext(access.WithUser(ctx, &user.DefaultInfo{Name: "watcher", Groups: []string{user.SystemPrivilegedGroup}})))

	got := map[string]auditv1.Event{}
	for _, e := range read() {
		got[string(e.AuditID)+" "+string(e.Stage)] = e
	}
	for name, want := range map[string]struct {
		verb, uri, message string
		code               int32
		old                string
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
		if e.ResponseStatus == nil || e.ResponseStatus.Code != want.code || e.Verb != want.verb || e.RequestURI != want.uri ||
			want.message != "" && e.ResponseStatus.Message != want.message || e.Annotations["k8s.io/deprecated"] != want.old {
			t.Errorf("%s: %+v", name, e)
		}
		if (e.ObjectRef != nil) != (name != "version") || e.ObjectRef != nil && (e.ObjectRef.Resource != "crontabs" || e.ObjectRef.APIGroup != "stable.example.com") {
			t.Errorf("%s: %+v", name, e.ObjectRef)
		}
	}
	if e := got["old ResponseComplete"]; e.User.Username != user.APIServerUser || e.UserAgent != "old-client/0.1" || e.StageTimestamp.Before(&e.RequestReceivedTimestamp) {
		t.Errorf("%+v", e)
	}
	if e := got["as ResponseComplete"]; e.User.Username != user.APIServerUser || e.ImpersonatedUser == nil || e.ImpersonatedUser.Username != "joe" {
		t.Errorf("%+v", e)
	}
	if e := got["crd ResponseComplete"]; e.Annotations["k8s.io/removed-release"] != "1.22" {
		t.Errorf("%+v", e)
	}
	if e := got["watch ResponseStarted"]; e.ResponseStatus == nil || e.User.Username != "watcher" || e.ResponseStatus.Code != 200 {
		t.Errorf("%+v", e)
	}
}

// A request that panics is recorded too.
func TestAuditOfAPanic(t *testing.T) {
	h, read := recorded(t)
	h.server.config.Discovery = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") })
	h.want(500, "GET", "/apis", "", "Audit-ID: panic")
	all := read()
	if e := all[len(all)-1]; e.Stage != auditv1.StagePanic || e.ResponseStatus.Code != 500 {
		t.Errorf("%+v", e)
	}
}

// VER-034: a deprecated version that was asked for shows in the metrics, with the release that no longer has it.
func TestDeprecatedMetric(t *testing.T) {
	h := withCronTabs(t)
	const want = `apiserver_requested_deprecated_apis{group="stable.example.com",removed_release="",resource="crontabs",subresource="",version="v1beta1"} 1`
	metrics := func() string { return h.want(200, "GET", "/metrics", "").Body.String() }
	if strings.Contains(metrics(), "apiserver_requested_deprecated_apis{") {
		t.Error("counted before it was asked for")
	}
	h.want(200, "GET", "/apis/stable.example.com/v1beta1/namespaces/default/crontabs/a", "")
	h.want(200, "GET", "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions", "")
	got := metrics()
	for _, line := range []string{want, `apiserver_requested_deprecated_apis{group="apiextensions.k8s.io",removed_release="1.22",resource="customresourcedefinitions",subresource="",version="v1beta1"} 1`} {
		if !strings.Contains(got, line) {
			t.Errorf("no %s", line)
		}
	}
	if strings.Contains(got, `apiserver_requested_deprecated_apis{group="stable.example.com",removed_release="",resource="crontabs",subresource="",version="v1"}`) {
		t.Error("v1 is not deprecated")
	}
}

// BenchmarkAudit is BenchmarkGet's handler with a record.
func BenchmarkAudit(b *testing.B) {
	for name, rules := range map[string]string{
		"off": "", "none": `[{level: None}]`, "metadata": `[{level: Metadata, omitStages: [RequestReceived]}]`, "both stages": `[{level: Metadata}]`,
		"bodies": `[{level: RequestResponse}]`,
	} {
		b.Run(name, func(b *testing.B) {
			file := &lumberjack.Logger{Filename: filepath.Join(b.TempDir(), "audit.log"), MaxSize: 100, MaxBackups: 1}
			defer file.Close()
			h := withCronTabs(b, func(c *Config) {
				if rules != "" {
					c.Audit = auditTo(b, file, rules)
				}
			})
			r := newRequest("GET", crontabs+"/a", "")
			b.ReportAllocs()
			for b.Loop() {
				h.server.ServeHTTP(&discard{header: http.Header{}}, r)
			}
		})
	}
}
