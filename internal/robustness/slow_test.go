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

// hurried is a server that waits half a second for a body.
func hurried(t *testing.T) *world {
	return newWorld(t, testserver.With(func(c *apiserver.Config) { c.RequestTimeout = 500 * time.Millisecond }))
}

// A body that was promised and never comes holds a connection for a bounded time, also where nobody reads it.
func TestBodiesThatNeverArrive(t *testing.T) {
	w := hurried(t)
	var waiting sync.WaitGroup
	for _, c := range []struct{ method, path, want string }{
		{"GET", victim, "200"}, {"GET", maps, "200"}, {"GET", maps + "?pretty=1", "200"}, {"GET", maps + "?watch=1", "504"}, {"GET", tab + "/status", "404"},
		{"GET", "/nowhere", "404"}, {"GET", "/apis/nowhere/v1/nothing", "404"}, {"GET", "/healthz", "200"}, {"GET", "/apis", "200"}, {"GET", "/openapi/v3", "200"}, {"GET", "/metrics", "200"},
		{"HEAD", victim, "405"}, {"OPTIONS", victim, "405"}, {"POST", "/nowhere", "404"}, {"POST", victim, "405"}, {"POST", maps, "504"}, {"PUT", victim, "504"}, {"PATCH", victim, "415"},
		{"DELETE", maps + "/absent", "504"}, {"DELETE", maps + "?labelSelector=a%3D%3D%3D", "400"}, {"DELETE", tabs, "504"},
	} {
		for _, length := range []string{"Content-Length: 1000", "Content-Length: 3000000", "Transfer-Encoding: chunked"} {
			name := c.method + " " + c.path + " " + length
			conn := w.dial("http/1.1")
			waiting.Go(func() {
				_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", c.method, c.path, length)
				began := time.Now()
				if got := said(conn, patience); !strings.HasPrefix(got, "HTTP/1.1 "+c.want) {
					t.Errorf("%s: got %q, want %s", name, short(got), c.want)
				}
				if time.Since(began) > patience/2 {
					t.Errorf("%s: the connection stays", name)
				}
				_ = conn.Close()
			})
		}
	}
	waiting.Wait()
	w.unharmed()
}

// A body that comes a byte at a time does not win time by that.
func TestBodiesThatTrickle(t *testing.T) {
	w := hurried(t)
	for _, path := range []string{"GET " + victim, "GET " + maps + "?watch=1", "POST " + maps, "POST /nowhere"} {
		conn := w.dial("http/1.1")
		_, _ = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n", path)
		go trickle(conn)
		began := time.Now()
		_ = said(conn, patience)
		if time.Since(began) > patience/2 {
			t.Errorf("%s: the connection stays", path)
		}
		_ = conn.Close()
	}
	w.unharmed()
}

// trickle says a little now and then, until nobody hears it.
func trickle(conn net.Conn) {
	for {
		pause()
		if _, err := conn.Write([]byte(" ")); err != nil {
			return
		}
	}
}

// The deadline of a body ends with it: a watch lives on, and so does the connection.
func TestBodiesThatNobodyReads(t *testing.T) {
	w := hurried(t)
	conn := w.dial("http/1.1")
	r := bufio.NewReader(conn)
	for _, path := range []string{victim, "/healthz", "/nowhere"} {
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", path)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	_, _ = fmt.Fprintf(conn, "GET %s?watch=1&resourceVersion=%s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", maps, w.revision)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("watch: %v %v", resp, err)
	}
	<-time.After(500 * time.Millisecond) // more than the body may take
	w.must(http.MethodPatch, victim, asMerge, `{"data":{"late":"yes"}}`)
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.Contains(line, `"late":"yes"`) {
		t.Errorf("the watch says %q, %v", short(line), err)
	}
}
