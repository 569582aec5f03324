// Package robustness_test sends malicious and malformed requests to a server over HTTPS. The tests check that each
// request gets a clear response, and that the server keeps running, writes nothing and leaks no goroutines.
package robustness_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

const (
	asJSON      = "application/json"
	asYAML      = "application/yaml"
	asProtobuf  = "application/vnd.kubernetes.protobuf"
	asApply     = "application/apply-patch+yaml"
	asMerge     = "application/merge-patch+json"
	asPatch     = "application/json-patch+json"
	asStrategic = "application/strategic-merge-patch+json"

	configMapsPath = "/api/v1/namespaces/default/configmaps"
	configMapPath  = configMapsPath + "/victim"
	cronTabsPath   = "/apis/stable.example.com/v1/namespaces/default/crontabs"
	cronTabPath    = cronTabsPath + "/victim"
	crdsPath       = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

	timeout = 10 * time.Second
)

// fixture is a server that stores one ConfigMap and one CronTab, with an administrator's client.
type fixture struct {
	t          *testing.T
	server     *testserver.Server
	host       string
	tlsConfig  *tls.Config
	client     *http.Client
	clients    []*http.Client
	revision   string
	goroutines int
}

func newFixture(t *testing.T, options ...testserver.Option) *fixture {
	t.Helper()
	options = append(options, testserver.With(func(c *apiserver.Config) { // else the server renews its Lease
		c.RuntimeConfig = map[string]string{"coordination.k8s.io/v1/leases": "false"}
	}))
	f := &fixture{t: t, server: testserver.Start(t, options...)}
	var err error
	if f.tlsConfig, err = rest.TLSConfigFor(f.server.Config); err != nil {
		t.Fatal(err)
	}
	f.host = strings.TrimPrefix(f.server.Config.Host, "https://")
	f.client = f.newClient(true)
	definition, err := os.ReadFile(filepath.Join("..", "..", "examples", "crontab", "resourcedefinition.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	f.mustSend(http.MethodPost, crdsPath, asYAML, string(definition))
	f.mustSend(http.MethodPost, configMapsPath, asJSON, `{"metadata":{"name":"victim"},"data":{"a":"b"}}`)
	f.mustSend(http.MethodPost, cronTabsPath, asJSON,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"victim"},"spec":{"image":"i"}}`)
	f.recordState()
	return f
}

// newClient returns an administrator's client. It uses HTTP/2 if allowHTTP2 is set, and HTTP/1.1 otherwise.
func (f *fixture) newClient(allowHTTP2 bool) *http.Client {
	config := f.tlsConfig.Clone()
	config.NextProtos = []string{"http/1.1"}
	if allowHTTP2 {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: allowHTTP2, DisableCompression: true}
	f.t.Cleanup(transport.CloseIdleConnections)
	c := &http.Client{Transport: transport, Timeout: raceFactor * timeout}
	f.clients = append(f.clients, c)
	return c
}

// dial opens a TLS connection with the ALPN protocol.
func (f *fixture) dial(protocol string) *tls.Conn {
	f.t.Helper()
	config := f.tlsConfig.Clone()
	config.NextProtos = []string{protocol}
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: raceFactor * timeout}, Config: config}
	c, err := dialer.DialContext(f.t.Context(), "tcp", f.host)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(raceFactor * timeout))
	return c.(*tls.Conn)
}

// requestCase is a request and the expected Status.
type requestCase struct {
	name, method, path, contentType string
	body                            any // string, []byte or io.Reader
	header                          map[string]string

	code    int
	reason  metav1.StatusReason
	message string // if it ends in "…", only the beginning must match; "" matches every message
}

func (f *fixture) newRequest(c *requestCase) *http.Request {
	f.t.Helper()
	var body io.Reader
	switch b := c.body.(type) {
	case nil:
	case string:
		body = strings.NewReader(b)
	case []byte:
		body = bytes.NewReader(b)
	case io.Reader:
		body = b
	}
	r, err := http.NewRequestWithContext(context.Background(), c.method, "https://"+f.host+c.path, body)
	if err != nil {
		f.t.Fatalf("%s: %v", c.name, err)
	}
	if c.contentType != "" {
		r.Header.Set("Content-Type", c.contentType)
	}
	for k, v := range c.header {
		r.Header.Set(k, v)
	}
	return r
}

// do sends a request and returns the status code and the body of the response. The code is 0 if there is no response.
func (f *fixture) do(client *http.Client, c *requestCase) (int, []byte) {
	f.t.Helper()
	resp, err := client.Do(f.newRequest(c))
	if err != nil {
		f.t.Errorf("%s: no response: %v", c.name, abbreviate(err.Error()))
		return 0, nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Errorf("%s: cannot read the response: %v", c.name, err)
	}
	return resp.StatusCode, data
}

// checkStatus sends a request and checks that the response is the expected Status.
func (f *fixture) checkStatus(c *requestCase) {
	f.t.Helper()
	code, data := f.do(f.client, c)
	if code == 0 {
		return
	}
	var s metav1.Status
	if err := json.Unmarshal(data, &s); err != nil || s.Kind != "Status" {
		f.t.Errorf("%s: got %d without a Status: %s", c.name, code, abbreviate(string(data)))
		return
	}
	prefix, isPrefix := strings.CutSuffix(c.message, "…")
	messageOK := s.Message == c.message || isPrefix && strings.HasPrefix(s.Message, prefix) || c.message == ""
	if code != c.code || int(s.Code) != code || s.Reason != c.reason || !messageOK {
		f.t.Errorf("%s:\n got %d %q %q\nwant %d %q %q", c.name, code, s.Reason, abbreviate(s.Message), c.code, c.reason,
			c.message)
	}
	if len(data) > maxResponse {
		f.t.Errorf("%s: the response has %d bytes, want at most %d", c.name, len(data), maxResponse)
	}
}

// maxResponse is the maximum size of an error response in bytes. Errors quote values of the request, some of them
// twice, as upstream does.
const maxResponse = 8 << 20

// abbreviate shortens s to at most 355 bytes if it has more than 400.
func abbreviate(s string) string {
	if len(s) > 400 {
		return s[:200] + " … " + s[len(s)-150:]
	}
	return s
}

// mustSend sends a request and returns the body of the response. It ends the test if the request fails.
func (f *fixture) mustSend(method, path, contentType, body string) []byte {
	f.t.Helper()
	c := &requestCase{name: method + " " + path, method: method, path: path, contentType: contentType, body: body}
	code, data := f.do(f.client, c)
	if code >= 300 || code == 0 {
		f.t.Fatalf("%s: got %d %s, want 2xx", c.name, code, data)
	}
	return data
}

// currentRevision returns the newest revision of the store.
func (f *fixture) currentRevision() string {
	f.t.Helper()
	var l metav1.List
	if err := json.Unmarshal(f.mustSend(http.MethodGet, "/api/v1/namespaces?limit=1", "", ""), &l); err != nil {
		f.t.Fatal(err)
	}
	return l.ResourceVersion
}

// recordState records the revision and the number of goroutines for checkUnchanged. It waits until they stop
// changing.
func (f *fixture) recordState() {
	f.t.Helper()
	for _, path := range []string{ // objects that controllers create
		"/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
		"/apis/apiregistration.k8s.io/v1/apiservices/v1.stable.example.com",
	} {
		for code := 0; code != http.StatusOK; {
			pause()
			code, _ = f.do(f.client, &requestCase{name: path, method: http.MethodGet, path: path})
		}
	}
	f.revision, f.goroutines = f.currentRevision(), runtime.NumGoroutine()
	for unchanged := 0; unchanged < 5; unchanged++ {
		pause()
		if r, n := f.currentRevision(), runtime.NumGoroutine(); r != f.revision || n > f.goroutines {
			f.revision, f.goroutines, unchanged = r, n, 0
		}
	}
}

// pause waits 10 milliseconds.
func pause() { <-time.After(10 * time.Millisecond) }

// checkUnchanged checks that the store has the recorded revision and that no goroutine was leaked.
func (f *fixture) checkUnchanged() {
	f.t.Helper()
	if revision := f.currentRevision(); revision != f.revision {
		f.t.Errorf("a request wrote to the store: got revision %s, want %s", revision, f.revision)
	}
	f.waitForGoroutines()
}

// waitForGoroutines blocks until the number of goroutines is at most 4 above the recorded number. The server may start
// a few goroutines at any time, such as those of an idle connection or a timer.
func (f *fixture) waitForGoroutines() {
	f.t.Helper()
	deadline := time.Now().Add(timeout)
	for runtime.NumGoroutine() > f.goroutines+4 {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			f.t.Fatalf("got %d goroutines, want at most %d:\n%s", runtime.NumGoroutine(), f.goroutines+4,
				stacks[:runtime.Stack(stacks, true)])
		}
		pause()
		for _, c := range f.clients {
			c.CloseIdleConnections()
		}
	}
}

// liveHeapBytes returns the size of the live heap after two garbage collections. A sync.Pool keeps its objects during
// the first one.
func liveHeapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
