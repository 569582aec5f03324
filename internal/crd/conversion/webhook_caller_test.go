package conversion

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/object"
)

// discardErrorLog discards the server's log messages about broken connections.
func (h *hook) discardErrorLog() *hook {
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	return h
}

// newNamedHook starts a webhook with a certificate for one name only.
func newNamedHook(t *testing.T, name string) *hook {
	h := newHook(t, nil).discardErrorLog()
	certificate, ca := certificateFor(t, name)
	h.TLS.Certificates = []tls.Certificate{certificate}
	h.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if hello.ServerName != name {
			return nil, fmt.Errorf("server name is %q", hello.ServerName)
		}
		return &tls.Config{Certificates: []tls.Certificate{certificate}}, nil
	}
	h.caPEM = ca
	return h
}

// convertOne converts one CronTab to v1.
func convertOne(w *Webhooks, config string) error {
	_, err := w.Convert(context.Background(), version("v1", config), []object.Tree{cronTab("a")})
	return err
}

// TestProxy checks that a webhook with a URL is called through the proxy of the environment, as upstream does. A
// Service is called directly.
func TestProxy(t *testing.T) {
	h := newNamedHook(t, "plain.default.svc")
	var requests []string
	w := NewWebhooks(WebhookConfig{Egress: &egress.Dialer{
		Proxy: func(r *http.Request) (*url.URL, error) {
			requests = append(requests, r.URL.Host)
			return &url.URL{Scheme: "http", Host: "proxy:1"}, nil
		},
		Resolve: func(context.Context, string, string, int32) (string, error) {
			return h.Listener.Addr().String(),
				nil
		},
		IsLocal: allowEveryService,
		ControlPlane: func(_ context.Context, _, address string) (net.Conn, error) {
			if address != "proxy:1" {
				t.Errorf("%s was dialled", address)
			}
			return nil, errors.New("the proxy received a request")
		},
	}})
	defer w.Close()
	if err := convertOne(w, h.config()); err == nil || !strings.Contains(err.Error(), "the proxy received a request") ||
		requests[0] != h.Listener.Addr().String() {
		t.Errorf("webhook with a URL: got error %v, proxy requests %v", err, requests)
	}
	config := fmt.Sprintf(`{"conversionReviewVersions":["v1"],"clientConfig":{"service":{"namespace":"default",`+
		`"name":"plain"},"caBundle":%q}}`, h.ca())
	if err := convertOne(w, config); err != nil {
		t.Errorf("by Service: %v", err)
	}
}

// TestServiceReference checks that a Service is resolved for each connection and called by its own name.
// CNV-040 CNV-042 CNV-043 CNV-044 CNV-045 CNV-046
func TestServiceReference(t *testing.T) {
	for _, c := range []struct{ reference, name, path, resolved string }{
		{`{"namespace":"my-service-namespace","name":"my-service-name","path":"/my-path","port":1234}`,
			"my-service-name.my-service-namespace.svc", "/my-path", "my-service-namespace/my-service-name:1234"},
		{`{"namespace":"default","name":"plain"}`, "plain.default.svc", "/", "default/plain:443"},
	} {
		h := newNamedHook(t, c.name)
		var resolved string
		w := NewWebhooks(WebhookConfig{Egress: &egress.Dialer{IsLocal: allowEveryService,
			Resolve: func(_ context.Context, namespace, name string, port int32) (string, error) {
				resolved = fmt.Sprintf("%s/%s:%d", namespace, name, port)
				return h.Listener.Addr().String(), nil
			}}})
		config := fmt.Sprintf(`{"conversionReviewVersions":["v1"],"clientConfig":{"service":%s,"caBundle":%q}}`,
			c.reference, h.ca())
		if err := convertOne(w, config); err != nil {
			t.Fatal(err)
		}
		if path := h.last.Load().URL.Path; path != c.path || resolved != c.resolved {
			t.Errorf("called %s at %s, want %s at %s", resolved, path, c.resolved, c.path)
		}
		w.Close()
	}
	w := NewWebhooks(WebhookConfig{})
	err := convertOne(w, `{"conversionReviewVersions":["v1"],"clientConfig":{"service":{"namespace":"n","name":"s"}}}`)
	if err == nil || !strings.Contains(err.Error(), "n/s") {
		t.Errorf("without Service resolution: got error %v", err)
	}
}

// TestReviewVersions checks that calls use the first supported version in conversionReviewVersions, and that they
// fail if no version is supported.
// CNV-026 CNV-031
func TestReviewVersions(t *testing.T) {
	h := newHook(t, nil)
	w := newWebhooks(t, "")
	for _, c := range []struct {
		versions []string
		want     string
	}{{[]string{"v1", "v1beta1"}, "v1"}, {[]string{"v1beta1", "v1"}, "v1beta1"}, {[]string{"v99", "v1"}, "v1"}} {
		if err := convertOne(w, h.config(c.versions...)); err != nil {
			t.Fatal(err)
		}
		if got := *h.body.Load(); !bytes.Contains(got, []byte(`"apiextensions.k8s.io/`+c.want+`"`)) {
			t.Errorf("%v sends %s", c.versions, got)
		}
	}
	calls := h.calls.Load()
	if err := convertOne(w, h.config("v99")); err == nil || !strings.Contains(err.Error(),
		"no supported conversion review versions") || h.calls.Load() != calls {
		t.Errorf("none: %v", err)
	}
}

// sentReview is a request body with a namespaced and a cluster-scoped object. %s is the review version.
const sentReview = `{"apiVersion": "apiextensions.k8s.io/%s", "kind": "ConversionReview", "request": {
	"uid": "6f0e", "desiredAPIVersion": "example.com/v1", "objects": [
		{"apiVersion": "example.com/v1beta1", "kind": "CronTab", "hostPort": "[::1]:80",
		"metadata": {"name": "nightly", "namespace": "jobs",
			"uid": "a-1", "resourceVersion": "7", "creationTimestamp": "2025-05-06T07:08:09Z",
			"labels": {"tier": "back"}}},
		{"apiVersion": "example.com/v1beta1", "kind": "CronTab", "hostPort": "b.example:81",
		"metadata": {"name": "everywhere",
			"uid": "b-2", "resourceVersion": "9", "creationTimestamp": "2025-05-06T07:08:10Z"}}]}}`

// TestRequestBody checks that the request body is a review with the unmodified objects and no other fields, and that
// each call has a different uid. CNV-048 CNV-051 CNV-052.
func TestRequestBody(t *testing.T) {
	for _, v := range []string{"v1", "v1beta1"} {
		checkReviewBody(t, v, fmt.Appendf(nil, sentReview, v))
	}
}

// TestDocumentedRequestBody checks the same as TestRequestBody, with the request bodies in the documentation. CNV-051
// CNV-052.
func TestDocumentedRequestBody(t *testing.T) {
	for _, v := range []string{"v1", "v1beta1"} {
		data, err := os.ReadFile(outside.Path("spec/examples/09-conversion/conversionreview-request." + v + ".json"))
		if err != nil {
			t.Skipf("the examples are not here: %v", err)
		}
		checkReviewBody(t, v, data)
	}
}

// checkReviewBody converts the objects of a review twice with a webhook of review version v. It checks that the
// webhook receives that review with a different uid.
func checkReviewBody(t *testing.T, v string, data []byte) {
	t.Helper()
	var want review
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	h, w, uids := newHook(t, nil), newWebhooks(t, ""), map[string]bool{}
	for range 2 {
		if _, err := w.Convert(t.Context(), version("v1", h.config(v)), want.Request.Objects); err != nil {
			t.Fatal(err)
		}
		got, _, err := object.DecodeJSON(*h.body.Load())
		if err != nil {
			t.Fatal(err)
		}
		request := got["request"].(object.Tree)
		uids[object.String(request, "uid")] = true
		request["uid"] = want.Request.UID
		wanted, _, _ := object.DecodeJSON(data)
		if !object.Equal(got, wanted) {
			t.Errorf("sent %s, want %s", object.AppendJSON(nil, got), data)
		}
	}
	if len(uids) != 2 || uids[""] {
		t.Errorf("uids %v of two calls", uids)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := newHook(t, nil)
	for _, code := range []int{301, 302, 307, 308} {
		h := newRawHook(t, func(w http.ResponseWriter, _ review) {
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(code)
		})
		if err := convertOne(newWebhooks(t, ""), h.config()); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprint(code)) {
			t.Errorf("%d: %v", code, err)
		}
	}
	if n := elsewhere.calls.Load(); n != 0 {
		t.Errorf("%d calls followed a redirect", n)
	}
}

// TestConnectionsAreReused checks that calls reuse a connection while the configuration is unchanged, and use a new
// one after the CA was changed.
// CNV-073
func TestConnectionsAreReused(t *testing.T) {
	h := newHook(t, nil).discardErrorLog()
	var dials atomic.Int64
	w := NewWebhooks(WebhookConfig{Egress: &egress.Dialer{ControlPlane: func(ctx context.Context, network,
		address string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}}})
	defer w.Close()
	for range 10 {
		if err := convertOne(w, h.config()); err != nil {
			t.Fatal(err)
		}
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections for ten calls", n)
	}
	if err := convertOne(w, strings.Replace(h.config(), h.ca(), otherCA(t), 1)); err == nil ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("with another CA: %v", err)
	}
	if err := convertOne(w, h.config()); err != nil || dials.Load() != 2 {
		t.Errorf("and back: %v, %d connections", err, dials.Load())
	}
}

// breaking starts a webhook that breaks its first connections, each after it has read a request. The parameter times
// is the number of these connections.
func breaking(t *testing.T, times int64) (*hook, *atomic.Int64) {
	var seen atomic.Int64
	return newRawHook(t, func(w http.ResponseWriter, q review) {
		if seen.Add(1) <= times {
			panic(http.ErrAbortHandler)
		}
		_ = json.NewEncoder(w).Encode(respondTo(q, nil))
	}).discardErrorLog(), &seen
}

func TestBrokenConnectionsAreTriedOnceMore(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		h, seen := breaking(t, 1)
		if !h2 {
			h.TLS.NextProtos = []string{"http/1.1"}
		}
		if err := convertOne(newWebhooks(t, ""), h.config()); err != nil || seen.Load() != 2 {
			t.Errorf("h2 %v: %v after %d requests", h2, err, seen.Load())
		}
		h, seen = breaking(t, 100)
		if !h2 {
			h.TLS.NextProtos = []string{"http/1.1"}
		}
		if err := convertOne(newWebhooks(t, ""), h.config()); err == nil || seen.Load() != 2 {
			t.Errorf("h2 %v: %v after %d requests", h2, err, seen.Load())
		}
	}
}

// TestResponsesAreBounded checks that an endless response is not read completely.
func TestResponsesAreBounded(t *testing.T) {
	h := newRawHook(t, func(w http.ResponseWriter, _ review) {
		_, _ = io.WriteString(w, `{"x":"`)
		block := bytes.Repeat([]byte("x"), 1<<20)
		for {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	if err := convertOne(newWebhooks(t, ""), h.config()); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("%v", err)
	}
}

// TestFailuresAreBounded checks that the size of error messages is limited, both of messages from a webhook and of
// messages about an object.
func TestFailuresAreBounded(t *testing.T) {
	long := strings.Repeat("\u00e9", 1<<20)
	for name, change := range map[string]func(*review){
		"message": func(r *review) { r.Response.Result = map[string]any{"status": "Failure", "message": long} },
		"status":  func(r *review) { r.Response.Result = map[string]any{"status": long} },
		"uid":     func(r *review) { r.Response.UID = long },
		"kind":    func(r *review) { r.Response.ConvertedObjects[0].(object.Tree)["kind"] = long },
	} {
		err := convertOne(newWebhooks(t, ""), newHook(t, change).config())
		if err == nil || len(err.Error()) > 2*maxFailureBytes || !utf8.ValidString(err.Error()) ||
			!strings.Contains(err.Error(), ": conversion webhook for ") {
			t.Errorf("%s: %d bytes: %.100v", name, len(fmt.Sprint(err)), err)
		}
	}
}

// TestCanceledRequest checks that a canceled request does not count as a failure of the webhook.
func TestCanceledRequest(t *testing.T) {
	entered := make(chan struct{}, 1)
	h := newRawHook(t, func(w http.ResponseWriter, _ review) { entered <- struct{}{}; select {} })
	h.Server.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		entered <- struct{}{}
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // a response could still arrive
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	w := newWebhooks(t, "")
	if _, err := w.Convert(ctx, version("v1", h.config()), []object.Tree{cronTab("a")}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("%v", err)
	}
	for range 2 * tripAfter { // canceled requests do not open the circuit breaker
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-entered; cancel() }()
		if _, err := w.Convert(ctx, version("v1", h.config()), []object.Tree{cronTab("a")}); !errors.Is(err,
			context.Canceled) {
			t.Errorf("%v", err)
		}
	}
}

// reports records the reports of Webhooks.
type reports struct {
	mu    sync.Mutex
	texts []string
}

func (r *reports) report(crd string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, fmt.Sprint(crd, ": ", err))
}

// tripAfter is the number of consecutive failures that opens the circuit breaker of a webhook.
const tripAfter = 5

// TestBreaker checks that calls fail immediately after some failures, except for one probe each second. Each CRD
// whose call fails is reported.
// CNV-059
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported reports
		var dead, mute atomic.Bool
		answer := func(c *tls.Conn, json string) {
			switch {
			case dead.Load(): // the server still accepts connections, so probes do not detect this failure
				c.Close()
			case !mute.Load():
				plainAnswer(c, json)
			}
		}
		s := newRawServer(t, answer, answer)
		var dials atomic.Int64
		w := NewWebhooks(WebhookConfig{Report: reported.report,
			Egress: &egress.Dialer{ControlPlane: func(ctx context.Context, network, address string) (net.Conn, error) {
				dials.Add(1)
				return s.dial(ctx, network, address)
			}}})
		defer w.Close()
		callWith := func(ctx context.Context, plural string) error {
			to := version("v1", s.webhook())
			to.Definition.Names.Plural = plural
			_, err := w.Convert(ctx, to, []object.Tree{cronTab("a")})
			return err
		}
		call := func(plural string) error { return callWith(t.Context(), plural) }
		tried := func(want bool, plural string) {
			t.Helper()
			before := dials.Load()
			if call(plural) == nil {
				t.Fatal("a call to the unavailable webhook succeeded")
			}
			if got := dials.Load() > before; got != want {
				t.Errorf("dialed: got %t, want %t", got, want)
			}
		}
		dead.Store(true)
		for range tripAfter {
			tried(true, "crontabs")
		}
		tried(false, "crontabs")
		<-time.After(1100 * time.Millisecond)
		tried(true, "crontabs")
		tried(false, "others")
		<-time.After(1100 * time.Millisecond)
		dead.Store(false)
		mute.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		// a canceled call is not reported, because the state of the webhook remains unknown
		if err := callWith(ctx, "given-up"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		mute.Store(false)
		for range 4 {
			if err := call("crontabs"); err != nil {
				t.Error(err)
			}
		}
		got := reported.take()
		for crd, want := range map[string]int{"given-up": 0, "crontabs.example.com: Post": 1,
			"others.example.com: Post": 1, "crontabs.example.com: <nil>": 1, "others.example.com: <nil>": 1} {
			if strings.Count(got, crd) != want {
				t.Errorf("reported %q %d times: %s", crd, strings.Count(got, crd), got)
			}
		}
		if !strings.HasSuffix(got, "crontabs.example.com: <nil>; others.example.com: <nil>") {
			t.Errorf("reported %s", got)
		}
	})
}

// TestDeadWebhookRecovers checks that calls to an unavailable webhook fail fast with the cause, and succeed when
// it is available again.
func TestDeadWebhookRecovers(t *testing.T) {
	h := newHook(t, nil)
	var dead atomic.Bool
	var dials atomic.Int64
	var reported reports
	w := NewWebhooks(WebhookConfig{Report: reported.report,
		Egress: &egress.Dialer{ControlPlane: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			if dead.Load() {
				return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}}})
	defer w.Close()
	dead.Store(true)
	for range 100 {
		err := convertOne(w, h.config())
		if err == nil || !strings.Contains(err.Error(),
			`conversion webhook for example.com/v1beta1, Kind=CronTab failed: Post "`+h.URL) ||
			!strings.Contains(err.Error(), "connection refused") {
			t.Fatal(err)
		}
	}
	if n := dials.Load(); n > 4*tripAfter {
		t.Errorf("%d connections were tried", n)
	}
	dead.Store(false)
	back := time.Now()
	for convertOne(w, h.config()) != nil {
		if time.Since(back) > 20*time.Second {
			t.Fatal("the webhook did not become reachable")
		}
	}
	if got := reported.take(); strings.Count(got, "crontabs.example.com: ") != 2 ||
		!strings.HasSuffix(got, "; crontabs.example.com: <nil>") {
		t.Errorf("reported %q", got)
	}
}

// TestCallsAreObserved checks that Observe is called for every call, with the values that upstream's metrics have.
// CNV-074
func TestCallsAreObserved(t *testing.T) {
	for _, c := range []struct {
		change func(*review)
		want   string
	}{{nil, ""}, {changes["failed"], malformedFailure}, {changes["one too many"], partialFailure},
		{changes["another name"], objectFailure}, {changes["v2"], callFailure}} {
		var got []Call
		w := NewWebhooks(WebhookConfig{Observe: func(c Call) { got = append(got, c) }})
		_ = convertOne(w, newHook(t, c.change).config())
		if len(got) != 1 || got[0].Failure != c.want || got[0].CRD != "crontabs.example.com" ||
			got[0].From != "v1beta1" || got[0].To != "v1" || got[0].Duration <= 0 {
			t.Errorf("got %+v, want one call that ends with %q", got, c.want)
		}
		w.Close()
	}
}

// TestUnusedConfigurationsAreEvicted checks that configurations without a CRD are evicted.
func TestUnusedConfigurationsAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWebhooks(WebhookConfig{})
		use := func(name string) {
			c, err := w.clientFor(`{"clientConfig":{"url":"https://` + name + `/"}}`)
			if err != nil {
				t.Fatal(err)
			}
			w.reach.recordCall(c, name+".example.com", nil)
		}
		use("a")
		<-time.After(idleTimeout)
		use("b")
		<-time.After(2 * time.Second)
		use("c")
		if len(w.clients) != 2 || len(w.reach.crds) != 2 {
			t.Errorf("got %d configurations and %d states, want none unused", len(w.clients), len(w.reach.crds))
		}
	})
}

// BenchmarkWebhookList converts 5,000 objects of 1 KB with a webhook that responds immediately.
func BenchmarkWebhookList(b *testing.B) {
	h := newHook(b, nil)
	h.Config.Handler = replay(b)
	var objects []object.Tree
	for i := range 5000 {
		o := cronTab(fmt.Sprintf("c%06d", i))
		o["text"] = strings.Repeat("x", 760)
		objects = append(objects, o)
	}
	w, to := newWebhooks(b, ""), version("v1", h.config())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Convert(context.Background(), to, objects); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWebhookCall converts one small object, which measures the cost of a call.
func BenchmarkWebhookCall(b *testing.B) {
	h := newHook(b, nil)
	h.Config.Handler = replay(b)
	w, to, objects := newWebhooks(b, ""), version("v1", h.config()), []object.Tree{cronTab("a")}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Convert(context.Background(), to, objects); err != nil {
			b.Fatal(err)
		}
	}
}

// replay returns the handler of a cheap webhook, which replaces bytes in the request body to create the response.
func replay(testing.TB) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, rest, _ := bytes.Cut(body, []byte(`"uid":"`))
		uid, rest, _ := bytes.Cut(rest, []byte(`"`))
		_, objects, _ := bytes.Cut(rest, []byte(`"objects":`))
		objects = bytes.ReplaceAll(bytes.TrimSuffix(objects, []byte("}}")), []byte(`example.com/v1beta1`),
			[]byte(`example.com/v1`))
		_, _ = fmt.Fprintf(w, `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1",`+
			`"response":{"uid":"%s","result":{"status":"Success"},"convertedObjects":%s}}`, uid, objects)
	})
}
