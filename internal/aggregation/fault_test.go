package aggregation_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// faulty is an API server of HTTP/1.1 that is well, but for what it does to requests below /apis: it gets their connections.
func faulty(t *testing.T, do func(net.Conn, *bufio.ReadWriter)) (*httptest.Server, []byte) {
	t.Helper()
	server, ca := extension(t, http.NotFound)
	well := server.Config.Handler
	bad := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Remote-User") == "system:kube-aggregator" {
			well.ServeHTTP(w, r)
			return
		}
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		do(conn, both)
	}))
	bad.TLS = server.TLS.Clone()
	bad.TLS.NextProtos = nil
	bad.StartTLS()
	t.Cleanup(bad.Close)
	return bad, ca
}

// TestFaults: AGG-057. Whatever a backend does, its clients get an answer or a broken one, and nothing of it stays.
func TestFaults(t *testing.T) {
	until := func(r *bufio.ReadWriter) { _, _ = io.Copy(io.Discard, r) } // the other side has gone
	for name, c := range map[string]struct {
		do     func(net.Conn, *bufio.ReadWriter)
		status int
		broken bool // the body
	}{
		"hangs before the header": {do: func(_ net.Conn, r *bufio.ReadWriter) { until(r) }, status: http.StatusGatewayTimeout},
		"hangs within the header": {do: func(c net.Conn, r *bufio.ReadWriter) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nA: "); until(r) }, status: http.StatusGatewayTimeout},
		"hangs within the body": {do: func(c net.Conn, r *bufio.ReadWriter) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
			until(r)
		}, status: http.StatusOK, broken: true},
		"closes at once": {do: func(net.Conn, *bufio.ReadWriter) {}, status: http.StatusServiceUnavailable},
		"is no HTTP":     {do: func(c net.Conn, _ *bufio.ReadWriter) { fmt.Fprint(c, "220 mail.example.com\r\n") }, status: http.StatusServiceUnavailable},
		"has a long header": {do: func(c net.Conn, r *bufio.ReadWriter) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
			for i := 0; ; i++ {
				if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("x", 1<<10)); err != nil {
					return
				}
			}
		}, status: http.StatusServiceUnavailable},
		"promises more than it sends": {do: func(c net.Conn, _ *bufio.ReadWriter) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
		}, status: http.StatusOK, broken: true},
		"sends more than it promises": {do: func(c net.Conn, _ *bufio.ReadWriter) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef")
		}, status: http.StatusOK},
		"sends a bad chunk": {do: func(c net.Conn, _ *bufio.ReadWriter) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nxyz\r\n")
		}, status: http.StatusOK, broken: true},
		"never ends": {do: func(c net.Conn, _ *bufio.ReadWriter) {
			for _, err := fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n"); err == nil; _, err = c.Write(make([]byte, 64<<10)) {
			}
		}, status: http.StatusOK, broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			server, ca := faulty(t, c.do)
			w := newWorld(t)
			w.at(nil, server)
			w.register(object.Tree{"caBundle": ca})
			w.until("available", available)
			resp, err := http.Get(w.served.URL + "/apis/wardle.example.com/v1alpha1/flunders")
			if err != nil {
				if !c.broken { // before the header was sent on
					t.Error(err)
				}
				return
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			if resp.StatusCode != c.status || (err != nil) != c.broken {
				t.Errorf("%d %v, want %d, broken %t", resp.StatusCode, err, c.status, c.broken)
			}
		})
	}
}
