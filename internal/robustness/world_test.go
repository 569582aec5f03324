// Package hostile_test is the caller that means harm: over HTTPS it sends what no client should, and
// demands each time a clear answer, a server that lives, nothing written, and nothing left behind.
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

	maps   = "/api/v1/namespaces/default/configmaps"
	victim = maps + "/victim"
	tabs   = "/apis/stable.example.com/v1/namespaces/default/crontabs"
	tab    = tabs + "/victim"
	crds   = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

	patience = 10 * time.Second
)

// world is a server with one object of a built-in and one of a custom kind in it, and a client.
type world struct {
	t        *testing.T
	server   *testserver.Server
	host     string
	tls      *tls.Config
	http     *http.Client
	clients  []*http.Client
	revision string
	routines int
}

func newWorld(t *testing.T, options ...testserver.Option) *world {
	t.Helper()
	w := &world{t: t, server: testserver.Start(t, options...)}
	var err error
	if w.tls, err = rest.TLSConfigFor(w.server.Config); err != nil {
		t.Fatal(err)
	}
	w.host = strings.TrimPrefix(w.server.Config.Host, "https://")
	w.http = w.client(true)
	definition, err := os.ReadFile(filepath.Join("..", "..", "examples", "crontab", "resourcedefinition.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w.must(http.MethodPost, crds, asYAML, string(definition))
	w.must(http.MethodPost, maps, asJSON, `{"metadata":{"name":"victim"},"data":{"a":"b"}}`)
	w.must(http.MethodPost, tabs, asJSON, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"victim"},"spec":{"image":"i"}}`)
	w.remember()
	return w
}

// client is an administrator's; it speaks HTTP/2 or HTTP/1.1.
func (w *world) client(two bool) *http.Client {
	config := w.tls.Clone()
	config.NextProtos = []string{"http/1.1"}
	if two {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: two, DisableCompression: true}
	w.t.Cleanup(transport.CloseIdleConnections)
	c := &http.Client{Transport: transport, Timeout: patience}
	w.clients = append(w.clients, c)
	return c
}

// dial is a connection to say anything on.
func (w *world) dial(protocol string) *tls.Conn {
	w.t.Helper()
	config := w.tls.Clone()
	config.NextProtos = []string{protocol}
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: config}
	c, err := dialer.DialContext(w.t.Context(), "tcp", w.host)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c.(*tls.Conn)
}

// call is a request and what must become of it.
type call struct {
	name, method, path, contentType string
	body                            any // string, []byte or io.Reader
	header                          map[string]string

	code    int
	reason  metav1.StatusReason
	message string // or the beginning of it, if it ends in "…"; "" accepts all
}

func (w *world) request(c *call) *http.Request {
	w.t.Helper()
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
	r, err := http.NewRequestWithContext(context.Background(), c.method, "https://"+w.host+c.path, body)
	if err != nil {
		w.t.Fatalf("%s: %v", c.name, err)
	}
	if c.contentType != "" {
		r.Header.Set("Content-Type", c.contentType)
	}
	for k, v := range c.header {
		r.Header.Set(k, v)
	}
	return r
}

// answer sends a request and reads all that comes back.
func (w *world) answer(client *http.Client, c *call) (int, []byte) {
	w.t.Helper()
	resp, err := client.Do(w.request(c))
	if err != nil {
		w.t.Errorf("%s: no answer: %v", c.name, short(err.Error()))
		return 0, nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Errorf("%s: half an answer: %v", c.name, err)
	}
	return resp.StatusCode, data
}

// refused demands the Status that c names.
func (w *world) refused(c *call) {
	w.t.Helper()
	code, data := w.answer(w.http, c)
	if code == 0 {
		return
	}
	var s metav1.Status
	if err := json.Unmarshal(data, &s); err != nil || s.Kind != "Status" {
		w.t.Errorf("%s: %d and no Status: %s", c.name, code, short(string(data)))
		return
	}
	begin, open := strings.CutSuffix(c.message, "…")
	told := s.Message == c.message || open && strings.HasPrefix(s.Message, begin) || c.message == ""
	if code != c.code || int(s.Code) != code || s.Reason != c.reason || !told {
		w.t.Errorf("%s:\n got %d %q %q\nwant %d %q %q", c.name, code, s.Reason, short(s.Message), c.code, c.reason, c.message)
	}
	if len(data) > maxAnswer {
		w.t.Errorf("%s: the answer has %d bytes", c.name, len(data))
	}
}

// maxAnswer is how large an answer to nonsense may be: as upstream, it quotes the request, some values twice.
const maxAnswer = 8 << 20

func short(s string) string {
	if len(s) > 400 {
		return s[:200] + " … " + s[len(s)-150:]
	}
	return s
}

func (w *world) must(method, path, contentType, body string) []byte {
	w.t.Helper()
	c := &call{name: method + " " + path, method: method, path: path, contentType: contentType, body: body}
	code, data := w.answer(w.http, c)
	if code >= 300 || code == 0 {
		w.t.Fatalf("%s: %d %s", c.name, code, data)
	}
	return data
}

// head is the revision of the newest state.
func (w *world) head() string {
	w.t.Helper()
	var l metav1.List
	if err := json.Unmarshal(w.must(http.MethodGet, "/api/v1/namespaces?limit=1", "", ""), &l); err != nil {
		w.t.Fatal(err)
	}
	return l.ResourceVersion
}

// remember takes the state that unharmed compares with, once it has come to rest.
func (w *world) remember() {
	w.t.Helper()
	for _, path := range []string{ // which the server's loops make
		"/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", "/apis/apiregistration.k8s.io/v1/apiservices/v1.stable.example.com",
	} {
		for code := 0; code != http.StatusOK; {
			pause()
			code, _ = w.answer(w.http, &call{name: path, method: http.MethodGet, path: path})
		}
	}
	w.revision, w.routines = w.head(), runtime.NumGoroutine()
	for quiet := 0; quiet < 5; quiet++ {
		pause()
		if r, n := w.head(), runtime.NumGoroutine(); r != w.revision || n > w.routines {
			w.revision, w.routines, quiet = r, n, 0
		}
	}
}

func pause() { <-time.After(10 * time.Millisecond) }

// unharmed demands that nothing was written and that no goroutine was left behind.
func (w *world) unharmed() {
	w.t.Helper()
	if now := w.head(); now != w.revision {
		w.t.Errorf("something was written: revision %s became %s", w.revision, now)
	}
	w.settled()
}

// settled waits until the goroutines are as few as they were. A few more may be alive at any time:
// those of an idle connection, of a timer.
func (w *world) settled() {
	w.t.Helper()
	until := time.Now().Add(patience)
	for runtime.NumGoroutine() > w.routines+4 {
		if time.Now().After(until) {
			stacks := make([]byte, 1<<20)
			w.t.Fatalf("%d goroutines became %d:\n%s", w.routines, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
		}
		pause()
		for _, c := range w.clients {
			c.CloseIdleConnections()
		}
	}
}

// heap is how many bytes live after two collections: a pool outlives one.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
