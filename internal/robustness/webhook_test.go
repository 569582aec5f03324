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
	hookedPath  = "/apis/example.com/%s/namespaces/%s/hooked"
	hookCRDPath = crdsPath + "/hooked.example.com"
)

// webhookCRD returns a CRD with a conversion webhook at url. certificate is its caBundle in DER.
func webhookCRD(url string, certificate []byte) string {
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"hooked.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"hooked","kind":"Hooked"},
"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],
"clientConfig":{"url":%q,"caBundle":%q}}},"versions":[
{"name":"v1beta1","served":true,"storage":true,
"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},
{"name":"v1","served":true,"storage":false,
"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
		url, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})))
}

// hookedObject returns an object of webhookCRD. more is added to its metadata.
func hookedObject(version, name, more string) string {
	return fmt.Sprintf(`{"apiVersion":"example.com/%s","kind":"Hooked","metadata":{"name":%q%s}}`, version, name, more)
}

// startWebhook starts a webhook with TLS.
func startWebhook(t *testing.T, h http.Handler) *httptest.Server {
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

// hijackHandler returns a handler that reads the request and passes the connection to serve.
func hijackHandler(serve func(c net.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		serve(c)
	}
}

// badWebhook is a faulty conversion webhook with the expected error response to clients.
type badWebhook struct {
	name    string
	handler http.Handler // nil: no server listens
	silent  bool         // the server accepts connections and sends nothing
	otherCA bool         // the caBundle of the CRD does not match the webhook
	slow    bool         // the request may time out before the call to the webhook ends
	code    int
	message string
}

// badWebhooks returns a webhook for each fault.
func badWebhooks(t *testing.T) []badWebhook {
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	hang := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	}
	respond := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	return []badWebhook{
		{name: "unreachable", code: 500, message: "connection refused"},
		{name: "no TLS handshake", silent: true, slow: true, code: 500, message: "conversion webhook for"},
		{name: "no response", handler: http.HandlerFunc(hang), slow: true, code: 500,
			message: "conversion webhook for"},
		{name: "wrong certificate", handler: respond("{}"), otherCA: true, code: 500,
			message: "x509: certificate signed by unknown authority"},
		{name: "empty response", handler: respond(""), code: 500, message: "0-length response with status code: 200"},
		{name: "not JSON", handler: respond("<html>"), code: 500, message: "json"},
		{name: "wrong uid", handler: respond(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview",
			"response":{"uid":"x","result":{"status":"Success"},"convertedObjects":[]}}`),
			code: 500, message: `got \"x\"`},
		{name: "not found", handler: http.NotFoundHandler(), code: 500,
			message: "the server could not find the requested resource"},
		{name: "redirects", handler: http.RedirectHandler("https://127.0.0.1:1/", http.StatusTemporaryRedirect),
			code: 500, message: "307"},
		{name: "connection closed", handler: hijackHandler(func(c net.Conn) { _ = c.Close() }), code: 500,
			message: "EOF"},
		{name: "unrequested upgrade", handler: hijackHandler(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			<-ended
			_ = c.Close()
		}), code: 500, message: "unexpected response 101 Switching Protocols"},
		{name: "truncated response", handler: hijackHandler(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
			_ = c.Close()
		}), code: 500, message: "unexpected EOF"},
		{name: "truncated response, half-closed connection", handler: hijackHandler(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
			<-ended
			_ = c.Close()
		}), code: 500, message: "unexpected EOF"},
		{name: "incomplete response, open connection", handler: hijackHandler(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
			<-ended
			_ = c.Close()
		}), slow: true, code: 500, message: "conversion webhook for"},
	}
}

// start starts the webhook. It returns its URL and the certificate for the CRD.
func (b *badWebhook) start(t *testing.T) (url string, certificate []byte) {
	if b.silent {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		good := startWebhook(t, http.NotFoundHandler())
		return "https://" + l.Addr().String(), good.Certificate().Raw // the kernel's backlog accepts connections
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
	if b.otherCA {
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

// TestBadWebhooks checks that a faulty conversion webhook fails only the requests that need conversion, in time and
// with the reason. Requests for the stored version and for other kinds succeed. Namespaces and owners can be deleted
// with their dependents, and the CRD can be deleted.
// CNV-059 CNV-062 CNV-063 CNV-075
func TestBadWebhooks(t *testing.T) {
	for _, b := range badWebhooks(t) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testserver.With(func(c *apiserver.Config) { c.RequestTimeout = time.Second }))
			f.mustSend("POST", crdsPath, asJSON, webhookCRD(b.start(t)))
			f.mustSend("POST", "/api/v1/namespaces", asJSON, `{"metadata":{"name":"n"}}`)
			owner := f.mustSend("POST", configMapsPath, asJSON, `{"metadata":{"name":"owner"}}`)
			stored, converted := fmt.Sprintf(hookedPath, "v1beta1", "default"), fmt.Sprintf(hookedPath, "v1", "default")
			f.mustSend("POST", stored, asJSON, hookedObject("v1beta1", "a", ""))
			f.mustSend("POST", stored, asJSON, hookedObject("v1beta1", "owned", fmt.Sprintf(
				`,"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q}]`, uidOf(t,
					owner))))
			f.mustSend("POST", fmt.Sprintf(hookedPath, "v1beta1", "n"), asJSON, hookedObject("v1beta1", "a", ""))

			b.checkFailures(f, converted)
			f.mustSend("PATCH", stored+"/a", asMerge, `{"metadata":{"labels":{"a":"b"}}}`)
			f.mustSend("GET", stored, "", "")
			f.mustSend("GET", cronTabPath, "", "")
			f.mustSend("PATCH", configMapPath, asMerge, `{"data":{"a":"c"}}`)

			f.mustSend("DELETE", converted+"/a", "", "") // the response is a Status, so it needs no conversion
			f.mustSend("DELETE", configMapsPath+"/owner", "", "")
			f.waitForDeletion(stored + "/owned")
			f.mustSend("DELETE", "/api/v1/namespaces/n", "", "")
			f.waitForDeletion("/api/v1/namespaces/n")
			f.mustSend("DELETE", hookCRDPath, "", "")
			f.waitForDeletion(hookCRDPath)
		})
	}
}

// checkFailures checks that concurrent requests for a version other than the stored one fail with the expected error.
func (b *badWebhook) checkFailures(f *fixture, path string) {
	f.t.Helper()
	var requests sync.WaitGroup
	for _, c := range []requestCase{
		{method: "GET", path: path + "/a"},
		{method: "GET", path: path},
		{method: "GET", path: path + "?limit=1"},
		{method: "POST", path: path, contentType: asJSON, body: hookedObject("v1", "b", "")},
		{method: "PUT", path: path + "/a", contentType: asJSON, body: hookedObject("v1", "a", "")},
		{method: "PATCH", path: path + "/a", contentType: asMerge, body: `{"x":"y"}`},
	} {
		requests.Go(func() {
			code, data := f.do(f.client, &c)
			if b.slow && code == http.StatusGatewayTimeout {
				return
			}
			if code != b.code || !strings.Contains(string(data), b.message) {
				f.t.Errorf("%s: %s %s: got %d %s, want %d %s", b.name, c.method, c.path, code, abbreviate(string(data)),
					b.code, b.message)
			}
			if !strings.Contains(string(data), "conversion webhook for example.com/v1") {
				f.t.Errorf("%s: %s %s: the error does not name the webhook: %s", b.name, c.method, c.path,
					abbreviate(string(data)))
			}
		})
	}
	requests.Wait()
	f.checkErrorEvent(path)
}

// checkErrorEvent checks that the first event of a watch is an ERROR, or that the watch request fails.
func (f *fixture) checkErrorEvent(path string) {
	f.t.Helper()
	resp, err := f.client.Do(f.newRequest(&requestCase{method: "GET", path: path + "?watch=1&resourceVersion=0"}))
	if err != nil {
		f.t.Error(err)
		return
	}
	defer resp.Body.Close()
	line, _ := bufio.NewReader(resp.Body).ReadString('\n')
	if !strings.Contains(line, `"type":"ERROR"`) || !strings.Contains(line, "conversion webhook for") {
		f.t.Errorf("watch: got %d %s, want an ERROR event", resp.StatusCode, abbreviate(line))
	}
}

// waitForDeletion blocks until a GET of the path returns 404.
func (f *fixture) waitForDeletion(path string) {
	f.t.Helper()
	deadline := time.Now().Add(2 * raceFactor * timeout)
	for {
		code, data := f.do(f.client, &requestCase{name: path, method: "GET", path: path})
		if code == http.StatusNotFound {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%s is not deleted: got %d %s", path, code, abbreviate(string(data)))
		}
		pause()
	}
}

// uidOf returns the UID of an object.
func uidOf(t *testing.T, object []byte) string {
	t.Helper()
	var o unstructured.Unstructured
	if err := json.Unmarshal(object, &o); err != nil {
		t.Fatal(err)
	}
	return string(o.GetUID())
}

// signingWebhook starts a webhook that sets the field signature of converted objects.
func signingWebhook(t *testing.T, signature string) *httptest.Server {
	return startWebhook(t, &conversionwebhook.Handler{Kinds: map[schema.GroupKind]conversionwebhook.Func{
		{Group: "example.com", Kind: "Hooked"}: func(obj *unstructured.Unstructured,
			_ string) (*unstructured.Unstructured, error) {
			obj.Object["signature"] = signature
			return obj, nil
		},
	}})
}

// TestWebhookChangesDuringReads checks that requests use a new webhook configuration as soon as the update of the
// CRD returns. This also applies while other requests are in flight (CNV-073).
func TestWebhookChangesDuringReads(t *testing.T) {
	f := newFixture(t)
	webhooks := []*httptest.Server{signingWebhook(t, "first"), signingWebhook(t, "second")}
	f.mustSend("POST", crdsPath, asJSON, webhookCRD(webhooks[0].URL, webhooks[0].Certificate().Raw))
	for i := range 20 {
		f.mustSend("POST", fmt.Sprintf(hookedPath, "v1beta1", "default"), asJSON,
			hookedObject("v1beta1", fmt.Sprint("o", i), ""))
	}
	list := fmt.Sprintf(hookedPath, "v1", "default")
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f.mustSend("GET", list, "", "")
				}
			}
		})
	}
	for i := range 20 {
		webhook, want := webhooks[i%2], []string{"first", "second"}[i%2]
		f.mustSend("PATCH", hookCRDPath, asMerge,
			fmt.Sprintf(`{"spec":{"conversion":{"webhook":{"clientConfig":{"url":%q}}}}}`, webhook.URL))
		if got := string(f.mustSend("GET", list, "", "")); strings.Count(got, `"signature":"`+want+`"`) != 20 {
			t.Fatalf("change %d: not all objects have the signature %q: %s", i, want, abbreviate(got))
		}
	}
	close(stop)
	readers.Wait()
}
