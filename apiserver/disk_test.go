package apiserver_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/trellis-k8s/trellis/apiserver"
)

// caller is an HTTP client of a server.
type caller struct {
	*testing.T
	server *apiserver.Server
	client *http.Client
}

func (c *caller) do(method, path, payload string) (*http.Response, string) {
	c.Helper()
	r, err := http.NewRequest(method, c.server.URL()+path, strings.NewReader(payload))
	if err != nil {
		c.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.client.Do(r)
	if err != nil {
		c.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.Fatal(err)
	}
	return resp, string(text)
}

func (c *caller) want(code int, method, path, payload string) string {
	c.Helper()
	resp, text := c.do(method, path, payload)
	if resp.StatusCode != code {
		c.Errorf("%s %s: %d, want %d: %.300s", method, path, resp.StatusCode, code, text)
	}
	return text
}

// TestDiskNearlyFull checks a server on a disk that is nearly full. A large create gets 503 with Retry-After. Small
// writes and deletions succeed. Health checks and metrics report the state, and no response contains a path. When the
// disk has free space again, all writes succeed.
func TestDiskNearlyFull(t *testing.T) {
	var free atomic.Uint64
	free.Store(10 << 20)
	dir := t.TempDir()
	s := start(t, apiserver.Config{DataDir: dir, DiskReserve: 1 << 20,
		DiskUsage: func() (uint64, uint64, error) { return free.Load(), 100 << 20, nil }})
	c := &caller{t, s, client(t, s)}
	const path = "/api/v1/namespaces/default/configmaps"
	manifest := func(name string) string {
		return `{"metadata":{"name":"` + name + `"},"data":{"a":"` + strings.Repeat("x", 200<<10) + `"}}`
	}
	c.want(201, "POST", path, manifest("a"))
	c.want(200, "GET", "/readyz", "")
	free.Store(900 << 10)
	resp, text := c.do("POST", path, manifest("b"))
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" ||
		!strings.Contains(text, `"reason":"ServiceUnavailable"`) || strings.Contains(text, dir) {
		t.Errorf("a create: %d %s %s", resp.StatusCode, resp.Header.Get("Retry-After"), text)
	}
	c.want(500, "GET", "/readyz", "")
	if text := c.want(500, "GET", "/readyz/storage", ""); !strings.Contains(text, "nearly full") ||
		strings.Contains(text, dir) {
		t.Errorf("/readyz/storage: %s", text)
	}
	c.want(200, "GET", "/livez", "")
	if text := c.want(200, "GET", "/metrics", ""); !strings.Contains(text, "\ntrellis_storage_writable 0\n") ||
		!strings.Contains(text, "\ntrellis_storage_disk_free_bytes 921600\n") {
		t.Error("/metrics does not report the full disk")
	}
	c.want(200, "GET", path+"/a", "")
	c.want(200, "PATCH", path+"/a", `{"metadata":{"labels":{"a":"b"},"finalizers":["example.com/a"]}}`)
	c.want(200, "DELETE", path+"/a", "")
	c.want(200, "PATCH", path+"/a", `{"metadata":{"finalizers":null}}`)
	c.want(404, "GET", path+"/a", "")
	free.Store(10 << 20)
	c.want(201, "POST", path, manifest("b"))
	c.want(200, "GET", "/readyz", "")
	if text := c.want(200, "GET", "/metrics", ""); !strings.Contains(text, "\ntrellis_storage_writable 1\n") {
		t.Error("/metrics does not report that the disk is writable again")
	}
}
