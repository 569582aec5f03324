package controllers_test

import (
	"encoding/base64"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/conversionwebhook"
)

// testWebhook is a conversion webhook for Widgets over TLS. It can be stopped and restarted at the same address.
type testWebhook struct {
	*testing.T
	handler  conversionwebhook.Handler
	server   *httptest.Server // the server that runs, or that ran last
	stopped  atomic.Bool
	testDone chan struct{} // closed at the end of the test; hanging requests wait for it
	hanging  atomic.Bool

	connections, calls, objects atomic.Int64
	// stopAfter is the number of converted objects after which the webhook stops without a response; 0 means no limit.
	stopAfter  atomic.Int64
	stopMu     sync.Mutex
	onConvert  atomic.Pointer[func()] // called during each conversion; may be nil
	extraBytes atomic.Int64           // number of bytes added to each object
}

func newTestWebhook(t *testing.T) *testWebhook {
	t.Helper()
	h := &testWebhook{T: t, testDone: make(chan struct{})}
	h.handler.Kinds = map[schema.GroupKind]conversionwebhook.Func{{Group: "example.com", Kind: "Widget"}: h.convert}
	h.start("127.0.0.1:0")
	t.Cleanup(func() { close(h.testDone) }) // runs after the API server has stopped
	return h
}

// convert moves the value of an object to the field that is named after the version. The strategy None does not move
// it, so a test can detect an object that the webhook has not converted.
func (h *testWebhook) convert(o *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
	h.objects.Add(1)
	if during := h.onConvert.Load(); during != nil {
		(*during)()
	}
	if n := int(h.extraBytes.Load()); n > 0 {
		o.Object["added"] = strings.Repeat("x", n)
	}
	gv, err := schema.ParseGroupVersion(to)
	for _, v := range allVersions {
		if value, has := o.Object[v]; has {
			delete(o.Object, v)
			o.Object[gv.Version] = value
		}
	}
	return o, err
}

func (h *testWebhook) start(address string) {
	h.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		h.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener = l
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			h.connections.Add(1)
		}
	}
	s.StartTLS() // the certificate of a restarted server is the same
	h.Cleanup(s.CloseClientConnections)
	h.Cleanup(func() { _ = s.Listener.Close() })
	h.server = s
}

func (h *testWebhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.calls.Add(1)
	if h.hanging.Load() {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-h.testDone:
		case <-r.Context().Done():
		}
	}
	answer := httptest.NewRecorder()
	if !h.stopped.Load() && !h.hanging.Load() {
		h.handler.ServeHTTP(answer, r)
	}
	if last := h.stopAfter.Load(); last != 0 && h.objects.Load() > last {
		h.stop()
	}
	if h.stopped.Load() || h.hanging.Load() {
		panic(http.ErrAbortHandler) // closes the connection
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// stop refuses new connections. An existing connection is closed when its next request arrives.
func (h *testWebhook) stop() {
	h.stopMu.Lock()
	defer h.stopMu.Unlock()
	h.stopped.Store(true)
	_ = h.server.Listener.Close()
}

// restart listens at the same address again.
func (h *testWebhook) restart() {
	h.Helper()
	h.stopAfter.Store(0)
	h.stopped.Store(false)
	h.start(h.server.Listener.Addr().String())
}

// conversion is spec.conversion of a CRD that names the webhook.
func (h *testWebhook) conversion() map[string]any {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.Certificate().Raw})
	return map[string]any{"strategy": "Webhook", "webhook": map[string]any{
		"conversionReviewVersions": []any{"v1"},
		"clientConfig": map[string]any{
			"url":      h.server.URL,
			"caBundle": base64.StdEncoding.EncodeToString(ca),
		},
	}}
}

// definition returns a CRD of Widgets with the versions v1 and v2 that uses the webhook.
func (h *testWebhook) definition(storage string) *unstructured.Unstructured {
	crd := definition(
		"example.com",
		"Widget",
		"Namespaced",
		version("v1", true, storage == "v1"),
		version("v2", true, storage == "v2"),
	)
	_ = unstructured.SetNestedMap(crd.Object, h.conversion(), "spec", "conversion")
	return crd
}
