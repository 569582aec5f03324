package robustness_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/conversionwebhook"
	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/testserver"
)

const (
	hooked  = "/apis/example.com/%s/namespaces/%s/hooked"
	hookCRD = crds + "/hooked.example.com"
)

// hookedCRD is a CRD whose webhook is at a URL and has a certificate.
func hookedCRD(url string, certificate []byte) string {
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"hooked.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"hooked","kind":"Hooked"},
"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":%q,"caBundle":%q}}},"versions":[
{"name":"v1beta1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},
{"name":"v1","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
		url, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})))
}

func hookedObject(version, name, more string) string {
	return fmt.Sprintf(`{"apiVersion":"example.com/%s","kind":"Hooked","metadata":{"name":%q%s}}`, version, name, more)
}

// hookServer is a webhook over TLS.
func hookServer(t *testing.T, h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// hijacked gives a handler the bare connection.
func hijacked(f func(c net.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		f(c)
	}
}

// badHook is a webhook that does not do what it should, and what clients are told.
type badHook struct {
	name    string
	handler http.Handler // nil: a server that is not there
	mute    bool         // a server that takes connections and says nothing
	other   bool         // the CRD has another certificate than the webhook
	slow    bool         // the request may end before the call does
	code    int
	message string
}

func badHooks(t *testing.T) []badHook {
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	hang := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	}
	answers := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	return []badHook{
		{name: "dead", code: 500, message: "connection refused"},
		{name: "mute", mute: true, slow: true, code: 500, message: "conversion webhook for"},
		{name: "hangs", handler: http.HandlerFunc(hang), slow: true, code: 500, message: "conversion webhook for"},
		{name: "another certificate", handler: answers("{}"), other: true, code: 500, message: "x509: certificate signed by unknown authority"},
		{name: "nothing", handler: answers(""), code: 500, message: "0-length response with status code: 200"},
		{name: "no JSON", handler: answers("<html>"), code: 500, message: "json"},
		{name: "another uid", handler: answers(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{"uid":"x","result":{"status":"Success"},"convertedObjects":[]}}`), code: 500, message: `got \"x\"`},
		{name: "an error", handler: http.NotFoundHandler(), code: 500, message: "the server could not find the requested resource"},
		{name: "redirects", handler: http.RedirectHandler("https://127.0.0.1:1/", http.StatusTemporaryRedirect), code: 500, message: "307"},
		{name: "hangs up", handler: hijacked(func(c net.Conn) { _ = c.Close() }), code: 500, message: "EOF"},
		{name: "another protocol, unasked", handler: hijacked(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			<-ended
			_ = c.Close()
		}), code: 500, message: "unexpected response 101 Switching Protocols"},
		{name: "half an answer", handler: hijacked(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
			_ = c.Close()
		}), code: 500, message: "unexpected EOF"},
		{name: "half-closed", handler: hijacked(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
			<-ended
			_ = c.Close()
		}), code: 500, message: "unexpected EOF"},
		{name: "half an answer, then silence", handler: hijacked(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
			<-ended
			_ = c.Close()
		}), slow: true, code: 500, message: "conversion webhook for"},
	}
}

// start returns the URL of a bad webhook and the certificate that the CRD has for it.
func (b *badHook) start(t *testing.T) (url string, certificate []byte) {
	if b.mute {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		good := hookServer(t, http.NotFoundHandler())
		return "https://" + l.Addr().String(), good.Certificate().Raw // the backlog takes connections
	}
	handler := b.handler
	if handler == nil {
		handler = http.NotFoundHandler()
	}
	s := httptest.NewUnstartedServer(handler)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	certificate = s.Certificate().Raw
	if b.other {
		keys, err := pki.Ensure("", nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		certificate = keys.CA.Raw
	}
	if b.handler == nil {
		s.Close()
	}
	return s.URL, certificate
}

// CNV-059 CNV-062 CNV-063 CNV-075: whatever a webhook does, it fails what needs it, in time and saying why, and nothing else:
// the stored version works, other kinds do not notice, namespaces and owners take their objects with them, the CRD can go.
func TestBadWebhooks(t *testing.T) {
	for _, b := range badHooks(t) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testserver.With(func(c *apiserver.Config) { c.RequestTimeout = time.Second }))
			w.must("POST", crds, asJSON, hookedCRD(b.start(t)))
			w.must("POST", "/api/v1/namespaces", asJSON, `{"metadata":{"name":"n"}}`)
			owner := w.must("POST", maps, asJSON, `{"metadata":{"name":"owner"}}`)
			old, now := fmt.Sprintf(hooked, "v1beta1", "default"), fmt.Sprintf(hooked, "v1", "default")
			w.must("POST", old, asJSON, hookedObject("v1beta1", "a", ""))
			w.must("POST", old, asJSON, hookedObject("v1beta1", "owned", fmt.Sprintf(
				`,"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q}]`, uidOf(t, owner))))
			w.must("POST", fmt.Sprintf(hooked, "v1beta1", "n"), asJSON, hookedObject("v1beta1", "a", ""))

			b.fails(w, now)
			w.must("PATCH", old+"/a", asMerge, `{"metadata":{"labels":{"a":"b"}}}`)
			w.must("GET", old, "", "")
			w.must("GET", tab, "", "")
			w.must("PATCH", victim, asMerge, `{"data":{"a":"c"}}`)

			w.must("DELETE", now+"/a", "", "") // which shows nothing, and so needs no conversion
			w.must("DELETE", maps+"/owner", "", "")
			w.vanishes(old + "/owned")
			w.must("DELETE", "/api/v1/namespaces/n", "", "")
			w.vanishes("/api/v1/namespaces/n")
			w.must("DELETE", hookCRD, "", "")
			w.vanishes(hookCRD)
		})
	}
}

// fails demands that every request at a version which is not stored fails as it should, many at a time.
func (b *badHook) fails(w *world, path string) {
	w.t.Helper()
	var asking sync.WaitGroup
	for _, c := range []call{
		{method: "GET", path: path + "/a"},
		{method: "GET", path: path},
		{method: "GET", path: path + "?limit=1"},
		{method: "POST", path: path, contentType: asJSON, body: hookedObject("v1", "b", "")},
		{method: "PUT", path: path + "/a", contentType: asJSON, body: hookedObject("v1", "a", "")},
		{method: "PATCH", path: path + "/a", contentType: asMerge, body: `{"x":"y"}`},
	} {
		asking.Go(func() {
			code, data := w.answer(w.http, &c)
			if b.slow && code == http.StatusGatewayTimeout {
				return
			}
			if code != b.code || !strings.Contains(string(data), b.message) {
				w.t.Errorf("%s: %s %s: %d %s, want %d %s", b.name, c.method, c.path, code, short(string(data)), b.code, b.message)
			}
			if !strings.Contains(string(data), "conversion webhook for example.com/v1") {
				w.t.Errorf("%s: %s %s does not say that it is a webhook: %s", b.name, c.method, c.path, short(string(data)))
			}
		})
	}
	asking.Wait()
	w.errorEvent(path)
}

// errorEvent demands that a watch ends with an ERROR, or does not begin.
func (w *world) errorEvent(path string) {
	w.t.Helper()
	resp, err := w.http.Do(w.request(&call{method: "GET", path: path + "?watch=1&resourceVersion=0"}))
	if err != nil {
		w.t.Error(err)
		return
	}
	defer resp.Body.Close()
	line, _ := bufio.NewReader(resp.Body).ReadString('\n')
	if !strings.Contains(line, `"type":"ERROR"`) || !strings.Contains(line, "conversion webhook for") {
		w.t.Errorf("a watch: %d %s", resp.StatusCode, short(line))
	}
}

// vanishes waits until there is nothing at a path.
func (w *world) vanishes(path string) {
	w.t.Helper()
	until := time.Now().Add(2 * patience)
	for {
		code, data := w.answer(w.http, &call{name: path, method: "GET", path: path})
		if code == http.StatusNotFound {
			return
		}
		if time.Now().After(until) {
			w.t.Fatalf("%s stays: %d %s", path, code, short(string(data)))
		}
		pause()
	}
}

func uidOf(t *testing.T, object []byte) string {
	t.Helper()
	var o unstructured.Unstructured
	if err := json.Unmarshal(object, &o); err != nil {
		t.Fatal(err)
	}
	return string(o.GetUID())
}

// signing is a webhook that signs what it converts.
func signing(t *testing.T, signature string) *httptest.Server {
	return hookServer(t, &conversionwebhook.Handler{Kinds: map[schema.GroupKind]conversionwebhook.Func{
		{Group: "example.com", Kind: "Hooked"}: func(obj *unstructured.Unstructured, _ string) (*unstructured.Unstructured, error) {
			obj.Object["signature"] = signature
			return obj, nil
		},
	}})
}

// CNV-073: once a change of the configuration is answered, every request goes by it, whatever is under way.
func TestWebhookChangesUnderReaders(t *testing.T) {
	w := newWorld(t)
	hooks := []*httptest.Server{signing(t, "first"), signing(t, "second")}
	w.must("POST", crds, asJSON, hookedCRD(hooks[0].URL, hooks[0].Certificate().Raw))
	for i := range 20 {
		w.must("POST", fmt.Sprintf(hooked, "v1beta1", "default"), asJSON, hookedObject("v1beta1", fmt.Sprint("o", i), ""))
	}
	list := fmt.Sprintf(hooked, "v1", "default")
	stop := make(chan struct{})
	var reading sync.WaitGroup
	for range 4 {
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					w.must("GET", list, "", "")
				}
			}
		})
	}
	for i := range 20 {
		hook, want := hooks[i%2], []string{"first", "second"}[i%2]
		w.must("PATCH", hookCRD, asMerge, fmt.Sprintf(`{"spec":{"conversion":{"webhook":{"clientConfig":{"url":%q}}}}}`, hook.URL))
		if got := string(w.must("GET", list, "", "")); strings.Count(got, `"signature":"`+want+`"`) != 20 {
			t.Fatalf("after change %d, not all are of the %s: %s", i, want, short(got))
		}
	}
	close(stop)
	reading.Wait()
}
