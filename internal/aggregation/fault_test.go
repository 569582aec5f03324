package aggregation_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/object"
)

// fault describes how an HTTP/1.1 backend that was healthy before fails, and the response that clients receive.
type fault struct {
	connect func(net.Conn)                    // handles accepted connections
	respond func(net.Conn, *bufio.ReadWriter) // handles requests
	status  int
	body    string // part of the response body
	broken  bool   // the response breaks off, possibly within the header
}

const (
	late  = "the backend API server did not respond within the allotted time"
	whole = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"
)

// drain reads until the peer closes the connection.
func drain(r io.Reader) { _, _ = io.Copy(io.Discard, r) }

func reset(c net.Conn) {
	if over, ok := c.(*tls.Conn); ok {
		c = over.NetConn()
	}
	_ = c.(*countedConn).Conn.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// endless writes begin, and then piece at each tick.
func endless(c net.Conn, begin, piece string, tick time.Duration) {
	_, err := fmt.Fprint(c, begin)
	for ticker := time.NewTicker(tick); err == nil; _, err = fmt.Fprint(c, piece) {
		<-ticker.C
	}
}

func faults(untrusted tls.Certificate) map[string]fault {
	const kB = 1 << 10
	const slow, quick = 20 * time.Millisecond, time.Microsecond
	sends := func(text string) func(net.Conn, *bufio.ReadWriter) {
		return func(c net.Conn, _ *bufio.ReadWriter) { fmt.Fprint(c, text) }
	}
	hangs := func(text string) func(net.Conn, *bufio.ReadWriter) {
		return func(c net.Conn, r *bufio.ReadWriter) { fmt.Fprint(c, text); drain(r) }
	}
	halfCloses := func(text string) func(net.Conn, *bufio.ReadWriter) {
		return func(c net.Conn, r *bufio.ReadWriter) { fmt.Fprint(c, text); _ = c.(*tls.Conn).CloseWrite(); drain(r) }
	}
	resets := func(text string) func(net.Conn, *bufio.ReadWriter) {
		return func(c net.Conn, _ *bufio.ReadWriter) { fmt.Fprint(c, text); reset(c) }
	}
	sendsOn := func(begin, piece string, tick time.Duration) func(net.Conn, *bufio.ReadWriter) {
		return func(c net.Conn, _ *bufio.ReadWriter) { endless(c, begin, piece, tick) }
	}
	return map[string]fault{
		"refuses":                {status: 503, body: "connection refused"},
		"resets connections":     {connect: reset, status: 503, body: "connection reset by peer"},
		"closes connections":     {connect: func(net.Conn) {}, status: 503},
		"hangs in the handshake": {connect: func(c net.Conn) { drain(c) }, status: 504, body: late},
		"has an untrusted certificate": {connect: func(c net.Conn) {
			_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{untrusted}}).Handshake()
		}, status: 503, body: "certificate signed by unknown authority"},
		"is no TLS": {connect: func(c net.Conn) { fmt.Fprint(c, "220 mail.example.com\r\n"); drain(c) }, status: 503,
			body: "first record does not look like a TLS handshake"},

		"hangs before the header":       {respond: hangs(""), status: 504, body: late},
		"hangs within the header":       {respond: hangs("HTTP/1.1 200 OK\r\nA: "), status: 504, body: late},
		"hangs within the body":         {respond: hangs(whole), status: 200, broken: true},
		"closes at once":                {respond: sends(""), status: 503, body: "EOF"},
		"half closes before the header": {respond: halfCloses(""), status: 503, body: "EOF"},
		"half closes within the body":   {respond: halfCloses(whole), status: 200, broken: true},
		"resets before the header":      {respond: resets(""), status: 503, body: "connection reset by peer"},
		"resets within the body":        {respond: resets(whole), status: 200, broken: true},
		"is no HTTP": {respond: sends("220 mail.example.com\r\n"), status: 503,
			body: "malformed HTTP"},
		"promises more than it sends": {respond: sends(whole), status: 200, broken: true},
		"sends more than it promises": {respond: sends("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef"),
			status: 200, body: "abc"},
		"promises two lengths": {respond: sends("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"), status: 503, body: "Content-Length"},
		"sends a bad chunk": {respond: sends("HTTP/1.1 200 OK\r\nTransfer-Encoding: " +
			"chunked\r\n\r\n3\r\nabc\r\nxyz\r\n"), status: 200, broken: true},
		"has endless headers": {respond: sendsOn("HTTP/1.1 200 OK\r\n", "A: "+strings.Repeat("x", kB)+"\r\n", quick),
			status: 503, body: "response headers exceeded"},
		"has an endless header": {respond: sendsOn("HTTP/1.1 200 OK\r\nA: ", strings.Repeat("x", kB), quick),
			status: 503, body: "response headers exceeded"},
		"has an endless body": {respond: sendsOn("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("x", 64*kB), quick),
			status: 200, body: "xxx", broken: true},
		"has a slow header": {respond: sendsOn("HTTP/1.1 200 OK\r\nA: ", "x", slow), status: 504, body: late},
		"has a slow body": {respond: sendsOn("HTTP/1.1 200 OK\r\n\r\n", "x", slow), status: 200, body: "x",
			broken: true},
	}
}

// TestFaults checks that clients of a faulty backend receive the expected status or a response that breaks off. It
// also checks that other backends respond in the meantime, and that no goroutine and no connection leaks. AGG-057
func TestFaults(t *testing.T) {
	here := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") }
	server, ca := extension(t, here)
	other, _ := extension(t, here)
	for name, f := range faults(other.TLS.Certificates[0]) {
		t.Run(name, func(t *testing.T) { f.run(t, server, ca, other) })
	}
}

func (f fault) run(t *testing.T, like *httptest.Server, ca []byte, other *httptest.Server) {
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	well := like.Config.Handler
	bad := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.respond == nil || r.Header.Get("X-Remote-User") == "system:kube-aggregator" {
			well.ServeHTTP(w, r)
			return
		}
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		begin()
		f.respond(conn, both)
	}))
	bad.TLS = like.TLS
	server, l := counting(t, bad, false)
	e := newEnv(t)
	e.setEndpoints(nil, server)
	getOther := e.addOther(other)
	e.wantNoLeaks(l, 1<<20, func() {
		e.register(object.Tree{"caBundle": ca})
		e.awaitReport("available", available)
		switch {
		case f.connect != nil:
			l.instead.Store(func(c net.Conn) {
				defer c.Close()
				begin()
				f.connect(c)
			})
		case f.respond == nil:
			_ = l.Close()
			begin()
		}
		var clients sync.WaitGroup
		for range 10 {
			clients.Go(func() { f.request(e) })
		}
		<-begun
		for range 20 {
			if status, body := getOther(); status != http.StatusOK || body != "here" {
				t.Errorf("the other backend: %d %q", status, body)
			}
		}
		clients.Wait()
		e.RemoveAPIService("v1alpha1.wardle.example.com") // closes idle connections
		e.Catalog()
	})
}

// request sends a request as a client and compares the response.
func (f fault) request(e *env) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(e.served.URL + "/apis/wardle.example.com/v1alpha1/flunders")
	if err != nil {
		if !f.broken || errors.Is(err, os.ErrDeadlineExceeded) {
			e.Error(err)
		}
		return
	}
	defer resp.Body.Close()
	start := make([]byte, 1<<10)
	n, err := io.ReadFull(resp.Body, start)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	} else if err == io.ErrUnexpectedEOF && int64(n) == resp.ContentLength || err == io.EOF {
		err = nil
	}
	if resp.StatusCode != f.status || (err != nil) != f.broken || !strings.Contains(string(start[:n]), f.body) {
		e.Errorf("got %d %q %v, want %d %q, broken: %t", resp.StatusCode, start[:n], err, f.status, f.body, f.broken)
	}
}

// addOther registers another APIService, and returns a function that sends a request to its backend.
func (e *env) addOther(server *httptest.Server) (get func() (int, string)) {
	e.Helper()
	e.mu.Lock()
	e.other = server.Listener.Addr().String()
	e.mu.Unlock()
	e.PutAPIService(object.Tree{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": object.Tree{"name": "v1.other.example.com", "uid": "2"}, "spec": object.Tree{
			"group": "other.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
			"insecureSkipTLSVerify": true,
			"service":               object.Tree{"namespace": "wardle", "name": "other", "port": 443},
		}})
	_, service := e.Catalog().Route("other.example.com", "v1", "things")
	e.awaitReport("the other backend is available", available)
	return func() (int, string) {
		recorder := httptest.NewRecorder()
		e.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/apis/other.example.com/v1/things", nil), service,
			jane, false)
		return recorder.Code, recorder.Body.String()
	}
}
