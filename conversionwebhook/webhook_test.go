package conversionwebhook_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/conversionwebhook"
)

// crontabs returns a handler for CronTabs. The name of an object selects the behavior of the conversion function.
func crontabs() *conversionwebhook.Handler {
	return &conversionwebhook.Handler{
		MaxBytes: 10 << 10,
		Logger:   slog.New(slog.DiscardHandler),
		Kinds: map[schema.GroupKind]conversionwebhook.Func{{Group: "example.com",
			Kind: "CronTab"}: func(obj *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
			switch obj.GetName() {
			case "refused":
				return nil, errors.New("refused because")
			case "panics":
				panic("with a secret")
			case "nothing":
				return nil, nil
			}
			return obj, nil
		}},
	}
}

func request(apiVersion string, names ...string) string {
	var objects []string
	for _, name := range names {
		objects = append(objects, fmt.Sprintf(`{"apiVersion":"example.com/v1beta1","kind":"CronTab","metadata":{"name":%q},"n":1}`, name))
	}
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"ConversionReview","request":{"uid":"u","desiredAPIVersion":"example.com/v1","objects":[%s]}}`,
		apiVersion, strings.Join(objects, ","))
}

func post(body string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	crontabs().ServeHTTP(w, r)
	return w
}

// TestReviews checks the responses to ConversionReviews of both versions: success, errors and panics.
// CNV-008 CNV-012 CNV-017 CNV-053 CNV-054 CNV-055 CNV-056 CNV-057
func TestReviews(t *testing.T) {
	const object = `{"apiVersion":"example.com/v1","kind":"CronTab","metadata":{"name":"%s"},"n":1}`
	failed := func(message string) string { return `{"status":"Failed","message":"` + message + `"}` }
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{"a", "b"}, `{"status":"Success"},"convertedObjects":[` + fmt.Sprintf(object, "a") + "," +
			fmt.Sprintf(object, "b") + "]"},
		{nil, `{"status":"Success"}`},
		{[]string{"a", "refused", "panics"}, failed("refused because")},
		{[]string{"a", "panics"}, failed(`convert CronTab \"panics\" to example.com/v1: panic in the conversion function`)},
		{[]string{"nothing"}, failed(`convert CronTab \"nothing\" to example.com/v1: the conversion function returned no object`)},
	} {
		for _, v := range []string{"apiextensions.k8s.io/v1", "apiextensions.k8s.io/v1beta1"} {
			w := post(request(v, c.names...), nil)
			want := `{"apiVersion":"` + v + `","kind":"ConversionReview","response":{"uid":"u","result":` + c.want +
				`}}`
			got := strings.ReplaceAll(w.Body.String(), "\n", "")
			if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" || got != want {
				t.Errorf("%v: %d\n%s, want\n%s", c.names, w.Code, got, want)
			}
		}
	}
	other := strings.ReplaceAll(request("apiextensions.k8s.io/v1", "a"), "CronTab", "Other")
	if got := post(other, nil).Body.String(); !strings.Contains(got,
		failed("no conversion function for Other.example.com")) {
		t.Errorf("another kind: %s", got)
	}
	same := strings.ReplaceAll(request("apiextensions.k8s.io/v1", "refused"), "example.com/v1beta1", "example.com/v1")
	if got := post(same, nil).Body.String(); !strings.Contains(got, "Success") {
		t.Errorf("nothing to convert: %s", got)
	}
}

// TestInvalidRequests checks the status codes for requests that are not ConversionReviews.
func TestInvalidRequests(t *testing.T) {
	good := request("apiextensions.k8s.io/v1", "a")
	for name, c := range map[string]struct {
		body   string
		change func(*http.Request)
		code   int
	}{
		"GET":             {good, func(r *http.Request) { r.Method = "GET" }, 405},
		"YAML":            {good, func(r *http.Request) { r.Header.Set("Content-Type", "application/yaml") }, 415},
		"no type":         {good, func(r *http.Request) { r.Header.Del("Content-Type") }, 415},
		"no JSON":         {"{", nil, 400},
		"nothing":         {"", nil, 400},
		"null":            {"null", nil, 400},
		"another version": {request("apiextensions.k8s.io/v2", "a"), nil, 400},
		"another kind":    {strings.Replace(good, "ConversionReview", "AdmissionReview", 1), nil, 400},
		"no request":      {`{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview"}`, nil, 400},
		"too large":       {strings.Replace(good, `"n":1`, `"n":"`+strings.Repeat("x", 11<<10)+`"`, 1), nil, 413},
	} {
		if w := post(c.body, c.change); w.Code != c.code {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, c.code)
		}
	}
	bad := strings.Replace(good, `"kind":"CronTab",`, "", 1)
	if got := post(bad, nil).Body.String(); !strings.Contains(got, "Failed") ||
		!strings.Contains(got, "decode object 0") {
		t.Errorf("an object without kind: %s", got)
	}
}

// pair is a self-signed certificate and its key.
type pair struct {
	pem         []byte
	certificate tls.Certificate
}

func newPair(t *testing.T, name string) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}}
}

func (p pair) write(t *testing.T, dir string) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(p.certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"tls.crt": p.pem,
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// serve starts a server and returns its address.
func serve(t *testing.T, s *conversionwebhook.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return "https://" + l.Addr().String()
}

// call sends one request on a new connection.
func call(url string, ca pair, certificates ...tls.Certificate) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.pem)
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}}}
	resp, err := c.Post(url, "application/json", strings.NewReader(request("apiextensions.k8s.io/v1", "a")))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}

// TestCertificateReload checks that a renewed certificate takes effect without a restart, and that the server keeps the
// last valid certificate if a file is damaged.
func TestCertificateReload(t *testing.T) {
	dir := t.TempDir()
	first, second := newPair(t, "first"), newPair(t, "the-second-is-longer")
	first.write(t, dir)
	url := serve(t, &conversionwebhook.Server{CertFile: dir + "/tls.crt", KeyFile: dir + "/tls.key",
		Handler: crontabs()})
	if err := call(url, first); err != nil {
		t.Fatal(err)
	}
	second.write(t, dir)
	within(t, func() bool { return call(url, second) == nil })
	if err := os.WriteFile(dir+"/tls.crt", []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(1200 * time.Millisecond)
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		if err := call(url, second); err != nil {
			t.Fatalf("with a broken file: %v", err)
		}
		select {
		case <-tick.C:
			continue
		case <-deadline:
		}
		break
	}
}

func within(t *testing.T, done func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for tick := time.NewTicker(20 * time.Millisecond); !done(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the condition is not true in time")
		}
	}
}

// TestClientCertificates checks that the server requires and verifies a client certificate if ClientCAFile is set.
// Otherwise it requires no client certificate. (CNV-014)
func TestClientCertificates(t *testing.T) {
	dir := t.TempDir()
	own, known, unknown := newPair(t, "localhost"), newPair(t, "known"), newPair(t, "unknown")
	own.write(t, dir)
	s := conversionwebhook.Server{CertFile: dir + "/tls.crt", KeyFile: dir + "/tls.key", Handler: crontabs()}
	open := s
	if err := call(serve(t, &open), own); err != nil {
		t.Errorf("without a certificate: %v", err)
	}
	if err := os.WriteFile(dir+"/ca.crt", known.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	closed := s
	closed.ClientCAFile = dir + "/ca.crt"
	url := serve(t, &closed)
	if err := call(url, own, known.certificate); err != nil {
		t.Errorf("known: %v", err)
	}
	if call(url, own) == nil || call(url, own, unknown.certificate) == nil {
		t.Error("a client without a certificate or with one of an unknown CA was accepted")
	}
}

// TestMissingFiles checks that Run returns an error if the certificate files do not exist.
func TestMissingFiles(t *testing.T) {
	s := conversionwebhook.Server{Address: "127.0.0.1:0", CertFile: "none", KeyFile: "none", Handler: crontabs()}
	if err := s.Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
