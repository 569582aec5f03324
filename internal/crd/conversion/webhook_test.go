package conversion

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// review is a ConversionReview for the webhooks of tests, which decode the request and encode the response.
type review struct {
	APIVersion string          `json:"apiVersion,omitempty"`
	Kind       string          `json:"kind,omitempty"`
	Request    *reviewRequest  `json:"request,omitempty"`
	Response   *reviewResponse `json:"response,omitempty"`
}

type reviewRequest struct {
	UID               string           `json:"uid"`
	DesiredAPIVersion string           `json:"desiredAPIVersion"`
	Objects           []map[string]any `json:"objects"`
}

type reviewResponse struct {
	UID              string         `json:"uid"`
	Result           map[string]any `json:"result"`
	ConvertedObjects []any          `json:"convertedObjects"`
}

// respondTo returns the correct response to a request, after the function change has modified it. change may be nil.
func respondTo(q review, change func(*review)) review {
	out := review{APIVersion: q.APIVersion, Kind: q.Kind, Response: &reviewResponse{UID: q.Request.UID,
		Result: map[string]any{"status": "Success"}}}
	for _, o := range q.Request.Objects {
		o = object.Copy(o)
		o["apiVersion"] = q.Request.DesiredAPIVersion
		if hostPort, ok := o["hostPort"].(string); ok {
			delete(o, "hostPort")
			o["host"], o["port"], _ = net.SplitHostPort(hostPort)
		}
		out.Response.ConvertedObjects = append(out.Response.ConvertedObjects, o)
	}
	if change != nil {
		change(&out)
	}
	return out
}

// hook is a webhook over TLS that counts calls and objects.
type hook struct {
	*httptest.Server
	calls, objects atomic.Int64
	last           atomic.Pointer[http.Request]
	body           atomic.Pointer[[]byte]
	caPEM          []byte // CA of the server's certificate; nil means that the certificate is its own CA
}

// newHook starts a webhook. The function change modifies each response before it is sent, and may be nil.
func newHook(t testing.TB, change func(*review)) *hook {
	return newRawHook(t, func(w http.ResponseWriter, q review) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(respondTo(q, change))
	})
}

func newRawHook(t testing.TB, answer func(w http.ResponseWriter, q review)) *hook {
	h := &hook{}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q review
		data, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(data, &q)
		}
		if err != nil || q.Request == nil {
			http.Error(w, fmt.Sprint("not a request: ", err), http.StatusBadRequest)
			return
		}
		h.calls.Add(1)
		h.objects.Add(int64(len(q.Request.Objects)))
		h.last.Store(r)
		h.body.Store(&data)
		answer(w, q)
	}))
	h.EnableHTTP2 = true
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func (h *hook) ca() string {
	if h.caPEM != nil {
		return base64.StdEncoding.EncodeToString(h.caPEM)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: h.Certificate().Raw}))
}

// config returns the JSON of spec.conversion.webhook.
func (h *hook) config(versions ...string) string {
	if len(versions) == 0 {
		versions = []string{"v1"}
	}
	list, _ := json.Marshal(versions)
	return fmt.Sprintf(`{"conversionReviewVersions":%s,"clientConfig":{"url":%q,"caBundle":%q}}`, list,
		h.URL+"/convert", h.ca())
}

// version returns a version of the kind CronTab, whose objects are converted by a webhook.
func version(name, config string) *resource.Version {
	gv := schema.GroupVersion{Group: "example.com", Version: name}
	return &resource.Version{GroupVersion: gv, APIVersion: gv.String(), Definition: &resource.Definition{
		Group: gv.Group, Names: resource.Names{Plural: "crontabs", Kind: "CronTab"},
		Custom: &resource.Custom{Conversion: resource.Conversion{Webhook: config}},
	}}
}

func cronTab(name string) object.Tree {
	return object.Tree{"apiVersion": "example.com/v1beta1", "kind": "CronTab", "hostPort": "localhost:1234",
		"metadata": object.Tree{"name": name, "namespace": "default", "uid": "uid-" + name, "generation": int64(3),
			"labels": object.Tree{"a": "b"}, "managedFields": []any{object.Tree{"manager": "m"}}}}
}

// allowEveryService allows every Service to have a loopback address, because the webhooks of tests have such
// addresses.
func allowEveryService(string, string) bool { return true }

// newWebhooks returns Webhooks that resolve every Service to one address.
func newWebhooks(t testing.TB, address string) *Webhooks {
	w := NewWebhooks(WebhookConfig{Egress: &egress.Dialer{Resolve: func(context.Context, string, string, int32) (string,
		error) {
		return address, nil
	}, IsLocal: allowEveryService}})
	t.Cleanup(w.Close)
	return w
}

// TestWebhookConverts checks a conversion of two objects by a webhook.
// CNV-047 CNV-049 CNV-050 CNV-054 CNV-056
func TestWebhookConverts(t *testing.T) {
	h := newHook(t, nil)
	out, err := newWebhooks(t, "").Convert(t.Context(), version("v1", h.config()),
		[]object.Tree{cronTab("a"), cronTab("b")})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"a", "b"} {
		want := cronTab(name)
		delete(want, "hostPort")
		want["apiVersion"], want["host"], want["port"] = "example.com/v1", "localhost", "1234"
		if !object.Equal(out[i], want) {
			t.Errorf("got %s, want %s", object.AppendJSON(nil, out[i]), object.AppendJSON(nil, want))
		}
	}
	r := h.last.Load()
	if r.Method != "POST" || r.URL.Path != "/convert" || r.Header.Get("Content-Type") != "application/json" ||
		r.Header.Get("Authorization") != "" {
		t.Errorf("request %s %s %v", r.Method, r.URL, r.Header)
	}
	if h.calls.Load() != 1 {
		t.Errorf("%d calls for two objects", h.calls.Load())
	}
}

// TestWebhookBatches checks that many objects need few calls and are returned in order.
// CNV-008
func TestWebhookBatches(t *testing.T) {
	h := newHook(t, nil)
	var in []object.Tree
	for i := range 1203 {
		in = append(in, cronTab(fmt.Sprint("c", i)))
	}
	large := cronTab("large")
	large["text"] = strings.Repeat("x", maxCallBytes)
	in = append(in, large, cronTab("last"))
	out, err := newWebhooks(t, "").Convert(t.Context(), version("v1", h.config()), in)
	if err != nil {
		t.Fatal(err)
	}
	for i := range in {
		if object.Name(out[i]) != object.Name(in[i]) {
			t.Fatalf("at %d: %s, want %s", i, object.Name(out[i]), object.Name(in[i]))
		}
	}
	if calls, objects := h.calls.Load(), h.objects.Load(); calls != 5 || objects != int64(len(in)) {
		t.Errorf("%d calls with %d objects", calls, objects)
	}
}

// otherCA returns a CA that has signed no certificate of the tests.
func otherCA(t testing.TB) string {
	_, ca := certificateFor(t, "other")
	return base64.StdEncoding.EncodeToString(ca)
}

// certificateFor returns a certificate for a name, which is its own CA, and its PEM.
func certificateFor(t testing.TB, name string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
