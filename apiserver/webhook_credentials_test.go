package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/conversionwebhook"
	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
	"github.com/trellis-k8s/trellis/testserver"
)

// mutual holds the files of a webhook that requires a client certificate, and a client of a server that calls the
// webhook.
type mutual struct {
	*testing.T
	dir    string
	keys   *pki.Bundle
	client *http.Client
	url    string
}

func newMutual(t *testing.T) *mutual {
	keys, err := pki.Ensure("", []string{"127.0.0.1", "localhost", "hook.default.svc"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := &mutual{T: t, dir: t.TempDir(), keys: keys}
	key, err := x509.MarshalPKCS8PrivateKey(keys.Serving.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	m.write("tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: keys.Serving.Certificate[0]})))
	m.write("tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	m.write("client.crt", string(keys.AdminCert))
	m.write("client.key", string(keys.AdminKey))
	m.write("ca.crt", string(keys.CAPEM))
	return m
}

// write writes a file and returns its path.
func (m *mutual) write(name, text string) string {
	m.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.Fatal(err)
	}
	return path
}

// kubeconfig writes a kubeconfig whose users all have the client certificate and the additional fields in more.
func (m *mutual) kubeconfig(name, more string, users ...string) string {
	m.Helper()
	text := "apiVersion: v1\nkind: Config\nusers:\n"
	for _, user := range users {
		text += fmt.Sprintf("- {name: %q, user: {client-certificate: client.crt, client-key: client.key%s}}\n", user,
			more)
	}
	return m.write(name, text)
}

func (m *mutual) start(options ...testserver.Option) {
	m.Helper()
	server := testserver.Start(m, append(options, testserver.LocalServices("default/hook"))...)
	var err error
	if m.client, err = rest.HTTPClientFor(server.Config); err != nil {
		m.Fatal(err)
	}
	m.url = server.Config.Host
}

// send sends a request and returns the status code and the body of the response.
func (m *mutual) send(method, path, text string) (int, string) {
	m.Helper()
	req, err := http.NewRequestWithContext(m.Context(), method, m.url+path, strings.NewReader(text))
	if err != nil {
		m.Fatal(err)
	}
	if method == "PATCH" {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := m.client.Do(req)
	if err != nil {
		m.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		m.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func (m *mutual) must(method, path, text string) {
	m.Helper()
	if status, body := m.send(method, path, text); status/100 != 2 {
		m.Fatalf("%s %s: %d %s", method, path, status, body)
	}
}

func (m *mutual) ca() string { return base64.StdEncoding.EncodeToString(m.keys.CAPEM) }

// TestConversionWebhookDemandsCertificate checks that a conversion webhook with a URL or a Service gets the client
// certificate of --conversion-webhook-kubeconfig. The name of the user in this file must be exactly the host and port
// of the webhook. (CNV-014)
func TestConversionWebhookDemandsCertificate(t *testing.T) {
	m := newMutual(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hook := conversionwebhook.Server{
		CertFile: m.dir + "/tls.crt", KeyFile: m.dir + "/tls.key", ClientCAFile: m.dir + "/ca.crt",
		Handler: &conversionwebhook.Handler{Kinds: map[schema.GroupKind]conversionwebhook.Func{
			{Group: "example.com", Kind: "Host"}: func(o *unstructured.Unstructured,
				_ string) (*unstructured.Unstructured, error) {
				return o, nil
			},
		}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- hook.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	port := l.Addr().(*net.TCPAddr).Port
	file := m.kubeconfig("kubeconfig", "", fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("hook.default.svc:%d", port),
		"localhost", "*")
	m.start(testserver.With(func(c *apiserver.Config) { c.ConversionKubeconfig = file }))
	m.must("POST", "/api/v1/namespaces/default/services",
		`{"metadata":{"name":"hook"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	m.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", fmt.Sprintf(hostCRD, m.ca(), port))
	m.must("POST", "/apis/example.com/v1/namespaces/default/hosts",
		`{"apiVersion":"example.com/v1","kind":"Host","metadata":{"name":"h"}}`)
	for _, c := range []struct {
		config string
		status int
	}{
		{fmt.Sprintf(`"service":{"namespace":"default","name":"hook","port":%d}`, port), http.StatusOK},
		{fmt.Sprintf(`"service":null,"url":"https://127.0.0.1:%d/"`, port), http.StatusOK},
		// the user localhost is for port 443
		{fmt.Sprintf(`"service":null,"url":"https://localhost:%d/"`, port), http.StatusInternalServerError},
	} {
		m.must("PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/hosts.example.com",
			`{"spec":{"conversion":{"webhook":{"clientConfig":{`+c.config+`}}}}}`)
		status, body := m.send("GET", "/apis/example.com/v2/namespaces/default/hosts/h", "")
		if status != c.status || status >= 300 && !strings.Contains(body,
			"conversion webhook for example.com/v1, Kind=Host failed") {
			t.Errorf("%s: %d %s, want %d", c.config, status, body, c.status)
		}
	}
}

// TestUnusableConversionKubeconfig checks kubeconfigs with users that cannot apply to a conversion webhook. If no
// user can apply, the start fails. If only some cannot, the server logs a warning.
func TestUnusableConversionKubeconfig(t *testing.T) {
	m := newMutual(t)
	for file, want := range map[string]string{
		m.kubeconfig("wildcard", "", "*"): `user "*": ignored: a wildcard does not apply to conversion webhooks`,
		m.dir + "/none":                   "no such file or directory",
	} {
		s, err := apiserver.Start(t.Context(), apiserver.Config{ConversionKubeconfig: file})
		if err == nil {
			_ = s.Shutdown()
		}
		if err == nil || !strings.Contains(err.Error(), "--conversion-webhook-kubeconfig: kubeconfig "+file+": ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	var log bytes.Buffer // slog's handler serializes writes
	s := start(t, apiserver.Config{ConversionKubeconfig: m.kubeconfig("both", "", "*", "hook.example.com"),
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if want := `level=WARN msg="--conversion-webhook-kubeconfig: user \"*\": ignored: a wildcard does not apply`; !strings.Contains(log.String(), want) {
		t.Errorf("logged: %s; want %s", log.String(), want)
	}
}

// reviews is an admission webhook that requires a client certificate and allows all requests. It records the path and
// the header Authorization of each request about a write of the administrator.
type reviews struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string
}

func (m *mutual) newReviews() *reviews {
	r := &reviews{}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(to http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			m.Error(err)
			return
		}
		if !strings.HasPrefix(review.Request.UserInfo.Username, "system:") { // controllers create ConfigMaps
			r.mu.Lock()
			r.seen = append(r.seen, strings.Trim(req.URL.Path+" "+req.Header.Get("Authorization"), "/ "))
			r.mu.Unlock()
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		review.Request = nil
		_ = json.NewEncoder(to).Encode(review)
	}))
	roots := x509.NewCertPool()
	roots.AddCert(m.keys.CA)
	r.TLS = &tls.Config{Certificates: []tls.Certificate{m.keys.Serving}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: roots}
	r.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.StartTLS()
	m.Cleanup(r.Close)
	return r
}

// take returns the requests since its last call.
func (r *reviews) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := strings.Join(r.seen, ", ")
	r.seen = nil
	return seen
}

// configure creates an admission webhook configuration for ConfigMaps.
func (m *mutual) configure(kind, url string) {
	m.Helper()
	m.must("POST", "/apis/admissionregistration.k8s.io/v1/"+kind+"webhookconfigurations",
		fmt.Sprintf(`{"metadata":{"name":"guard"},"webhooks":[{"name":"guard.example.com",
"clientConfig":{"url":%q,"caBundle":%q},"sideEffects":"None","admissionReviewVersions":["v1"],"rules":[{"operations":["*"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}]}`, url, m.ca()))
}

// TestAdmissionWebhookDemandsCertificate checks that an admission webhook gets the credentials of the kubeConfigFile of
// its plugin, as in kube-apiserver. Each plugin has a separate file, and wildcards apply.
func TestAdmissionWebhookDemandsCertificate(t *testing.T) {
	m := newMutual(t)
	hook := m.newReviews()
	mutating := m.kubeconfig("mutating", ", token: secret", "*")
	m.write("validating.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: "+
		"WebhookAdmissionConfiguration\nkubeConfigFile: "+m.kubeconfig("validating", "", hook.Listener.Addr().String()))
	file := m.write("admission.yaml", `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- {name: MutatingAdmissionWebhook, configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: `+mutating+`}}
- {name: ValidatingAdmissionWebhook, path: validating.yaml}
`)
	m.start(testserver.With(func(c *apiserver.Config) { c.Admission.ConfigFile = file }))
	const maps = "/api/v1/namespaces/default/configmaps"
	m.configure("mutating", hook.URL+"/mutate")
	m.configure("validating", hook.URL+"/validate")
	m.must("POST", maps, `{"metadata":{"name":"one"}}`)
	if got := hook.take(); got != "mutate Bearer secret, validate" {
		t.Errorf("the webhook got %q", got)
	}
	m.must("DELETE", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/guard", "")
	m.configure("validating", strings.Replace(hook.URL, "127.0.0.1", "localhost", 1)+"/elsewhere")
	status, text := m.send("POST", maps, `{"metadata":{"name":"two"}}`)
	if got := hook.take(); status != http.StatusInternalServerError ||
		!strings.Contains(text, `failed calling webhook \"guard.example.com\": failed to call webhook: Post`) ||
		got != "mutate Bearer secret" {
		t.Errorf("%d %s; the webhook got %q", status, text, got)
	}
	if err := os.Rename(m.dir+"/client.key", m.dir+"/moved.key"); err != nil {
		t.Fatal(err)
	}
	m.must("DELETE", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/guard", "")
	m.configure("validating", hook.URL+"/fresh")
	if status, text = m.send("POST", maps, `{"metadata":{"name":"two"}}`); status != http.StatusInternalServerError ||
		!strings.Contains(text, "could not get REST client: open "+m.dir+"/client.key") {
		t.Errorf("without a key: %d %s", status, text)
	}
	if err := os.Rename(m.dir+"/moved.key", m.dir+"/client.key"); err != nil {
		t.Fatal(err)
	}
	m.must("POST", maps, `{"metadata":{"name":"two"}}`) // the server reads the key again
}

// pageExample matches a block of indented lines in a documentation page.
var pageExample = regexp.MustCompile(`(?m)(?:^    .*\n)+`)

// TestPageOfAdmissionCredentials checks that webhooks get the credentials in the two example files of
// docs/admission.md.
func TestPageOfAdmissionCredentials(t *testing.T) {
	m := newMutual(t)
	page, err := os.ReadFile("../docs/admission.md")
	if err != nil {
		t.Fatal(err)
	}
	_, chapter, _ := strings.Cut(string(page), "### A webhook that demands credentials")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	files := pageExample.FindAllString(chapter, -1)
	if len(files) != 2 {
		t.Fatalf("the page has %d indented examples", len(files))
	}
	for i, text := range files {
		files[i] = strings.ReplaceAll("\n"+text, "\n    ", "\n")
	}
	hook := m.newReviews()
	m.write("token", "secret")
	users := m.write("kubeconfig", strings.Replace(files[1], "hook.example.com:8443", hook.Listener.Addr().String(), 1))
	file := m.write("admission.yaml", strings.ReplaceAll(files[0], "/etc/trellis/webhooks.kubeconfig", users))
	m.start(testserver.With(func(c *apiserver.Config) { c.Admission.ConfigFile = file }))
	m.configure("mutating", hook.URL+"/mutate")
	m.configure("validating", hook.URL+"/validate")
	m.must("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"one"}}`)
	if got := hook.take(); got != "mutate, validate" {
		t.Errorf("the webhook got %q", got)
	}
}

// TestInvalidAdmissionWebhookSettings checks that the start fails with invalid settings of the webhook plugins.
func TestInvalidAdmissionWebhookSettings(t *testing.T) {
	m := newMutual(t)
	for settings, want := range map[string]string{
		"kubeConfigFile: kubeconfig":                   `kubeConfigFile: Invalid value: "kubeconfig": must be an absolute file path`,
		"kubeConfigFile: " + m.dir + "/none":           "stat " + m.dir + "/none: no such file or directory",
		"staticManifestsDir: " + m.dir:                 "staticManifestsDir: not supported",
		"kubeconfigFile: " + m.dir + "/none":           "strict decoding error: unknown field",
		"kubeConfigFile: " + m.write("k", "users: [}"): "error loading config file",
		"kubeConfigFile: " + m.write("u", lacksTheToken): `user "*": open ` + m.dir +
			"/token: no such file or directory",
	} {
		for _, plugin := range []string{"MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"} {
			file := m.write("admission.yaml", `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins: [{name: `+plugin+`, configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, `+settings+`}}]`)
			s, err := apiserver.Start(t.Context(), apiserver.Config{Admission: plugins.Options{ConfigFile: file}})
			if err == nil {
				_ = s.Shutdown()
			}
			if err == nil || !strings.Contains(err.Error(), `couldn't init admission plugin "`+plugin+`": `) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", settings, err, want)
			}
		}
	}
}

const lacksTheToken = `users: [{name: "*", user: {tokenFile: token}}]`
