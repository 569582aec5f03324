package robustness_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// newShortTimeoutFixture starts a server with a request timeout of half a second.
func newShortTimeoutFixture(t *testing.T) *fixture {
	return newFixture(t, testserver.With(func(c *apiserver.Config) { c.RequestTimeout = 500 * time.Millisecond }))
}

// TestMissingBodies checks requests whose announced body never arrives. The server closes their connections soon,
// even if no handler reads the body.
func TestMissingBodies(t *testing.T) {
	f := newShortTimeoutFixture(t)
	var connections sync.WaitGroup
	for _, c := range []struct{ method, path, want string }{
		{"GET", configMapPath, "200"},
		{"GET", configMapsPath, "200"},
		{"GET", configMapsPath + "?pretty=1", "200"},
		{"GET", configMapsPath + "?watch=1", "504"},
		{"GET", cronTabPath + "/status", "404"},
		{"GET", "/nowhere", "404"},
		{"GET", "/apis/nowhere/v1/nothing", "404"},
		{"GET", "/healthz", "200"},
		{"GET", "/apis", "200"},
		{"GET", "/openapi/v3", "200"},
		{"GET", "/metrics", "200"},
		{"HEAD", configMapPath, "405"},
		{"OPTIONS", configMapPath, "405"},
		{"POST", "/nowhere", "404"},
		{"POST", configMapPath, "405"},
		{"POST", configMapsPath, "504"},
		{"PUT", configMapPath, "504"},
		{"PATCH", configMapPath, "415"},
		{"DELETE", configMapsPath + "/absent", "504"},
		{"DELETE", configMapsPath + "?labelSelector=a%3D%3D%3D", "400"},
		{"DELETE", cronTabsPath, "504"},
	} {
		for _, length := range []string{"Content-Length: 1000", "Content-Length: 3000000",
			"Transfer-Encoding: chunked"} {
			name := c.method + " " + c.path + " " + length
			conn := f.dial("http/1.1")
			connections.Go(func() {
				_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", c.method, c.path, length)
				start := time.Now()
				if got := readResponse(conn, timeout); !strings.HasPrefix(got, "HTTP/1.1 "+c.want) {
					t.Errorf("%s: got %q, want status %s", name, abbreviate(got), c.want)
				}
				if time.Since(start) > timeout/2 {
					t.Errorf("%s: the connection is open after %v", name, timeout/2)
				}
				_ = conn.Close()
			})
		}
	}
	connections.Wait()
	f.checkUnchanged()
}

// TestSlowBodies checks that the timeout of a body that arrives byte by byte is not extended.
func TestSlowBodies(t *testing.T) {
	f := newShortTimeoutFixture(t)
	for _, path := range []string{"GET " + configMapPath, "GET " + configMapsPath + "?watch=1",
		"POST " + configMapsPath, "POST /nowhere"} {
		conn := f.dial("http/1.1")
		_, _ = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+
			"100000\r\n\r\n", path)
		go sendSlowly(conn)
		start := time.Now()
		_ = readResponse(conn, timeout)
		if time.Since(start) > timeout/2 {
			t.Errorf("%s: the connection is open after %v", path, timeout/2)
		}
		_ = conn.Close()
	}
	f.checkUnchanged()
}

// sendSlowly writes one byte every 10 milliseconds until the connection is closed.
func sendSlowly(conn net.Conn) {
	for {
		pause()
		if _, err := conn.Write([]byte(" ")); err != nil {
			return
		}
	}
}

// TestUnreadBodies checks that the read deadline of a body no longer applies when the body is complete. The
// connection stays open, and a watch on it continues.
func TestUnreadBodies(t *testing.T) {
	f := newShortTimeoutFixture(t)
	conn := f.dial("http/1.1")
	r := bufio.NewReader(conn)
	for _, path := range []string{configMapPath, "/healthz", "/nowhere"} {
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", path)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	_, _ = fmt.Fprintf(conn, "GET %s?watch=1&resourceVersion=%s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
		configMapsPath, f.revision)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("watch: got response %v, error %v, want status 200", resp, err)
	}
	<-time.After(500 * time.Millisecond) // longer than the timeout of the body
	f.mustSend(http.MethodPatch, configMapPath, asMerge, `{"data":{"late":"yes"}}`)
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.Contains(line, `"late":"yes"`) {
		t.Errorf("watch: got event %q, error %v, want the update of the ConfigMap", abbreviate(line), err)
	}
}
