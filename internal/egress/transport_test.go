package egress

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"

// TestFaults checks that a call ends in time and returns an error for each fault of a destination, and that the circuit
// breaker opens if the destination does not respond.
func TestFaults(t *testing.T) {
	const timeout = 20 * time.Second
	for name, c := range map[string]struct {
		answer  func(net.Conn, *http.Request)
		other   bool          // the destination uses an untrusted certificate
		named   string        // host name in the certificate; "" means the right one
		refuses bool          // connections are refused
		raw     bool          // connections are accepted, but the TLS handshake never starts
		want    string        // expected in the error; "" means success
		took    time.Duration // duration of a call; 0 means any
		trips   bool          // the circuit breaker opens
	}{
		"success":            {answer: writes(ok)},
		"connection refused": {refuses: true, want: "connection refused", trips: true},
		"no response":        {answer: silent, want: "deadline exceeded", took: timeout, trips: true},
		"no TLS handshake":   {raw: true, want: "TLS handshake timeout", took: handshakeTimeout, trips: true},
		"connection closed":  {answer: writesAndCloses(""), want: "EOF", trips: true},
		"half a header":      {answer: writesAndCloses("HTTP/1.1 200"), want: "unexpected EOF", trips: true},
		"half a response": {answer: writesAndCloses("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
			want: "unexpected EOF", trips: true},
		"half a response and a stall": {answer: writes("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
			want: "deadline exceeded", took: timeout, trips: true},
		"a byte a second": {answer: repeats("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", "x",
			time.Second), want: "deadline exceeded", took: timeout, trips: true},
		"an endless response": {answer: repeats("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
			"9\r\n123456789\r\n", 0), want: "larger than 1000 bytes"},
		"a large response": {answer: writes("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" +
			strings.Repeat("x", 1001)), want: "larger than 1000 bytes"},
		"response of the maximum size": {answer: writes("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" +
			strings.Repeat("x", 1000))},
		"an endless header": {answer: repeats("HTTP/1.1 200 OK\r\n", "x: "+strings.Repeat("x", 1<<10)+"\r\n",
			0), want: "headers exceeded 1048576 bytes", trips: true},
		"another protocol": {answer: writesAndCloses("SSH-2.0-OpenSSH\r\n"), want: "malformed HTTP",
			trips: true},
		"an unknown certificate": {answer: writes(ok), other: true,
			want: "x509: certificate signed by unknown authority", trips: true},
		"another name's certificate": {answer: writes(ok), named: "other.example.com",
			want: "x509: certificate is valid for other.example.com", trips: true},
		"unexpected 101": {answer: writes(switched), want: "without an Upgrade header", trips: true},
		"unexpected 101, endless": {answer: repeats(switched, strings.Repeat("x", 1<<10), 0),
			want: "without an Upgrade header", trips: true},
		"an error": {answer: writes("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")},
		"a redirect": {answer: writes("HTTP/1.1 302 Found\r\nLocation: " +
			"https://elsewhere/\r\nContent-Length: 0\r\n\r\n")},
		"a redirect of the same kind": {answer: writes("HTTP/1.1 307 Temporary Redirect\r\nLocation: " +
			"https://elsewhere/\r\nContent-Length: 0\r\n\r\n")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if c.named == "" {
					c.named = host
				}
				d := newDestination(t, c.named, c.answer)
				client := newCaller(t, d, Options{Timeout: timeout, MaxBytes: 1000})
				d.refuses.Store(c.refuses)
				if c.other {
					d.certificate, _ = certificateFor(t, c.named)
				}
				if c.raw {
					client.template.DialContext = func(context.Context, string, string) (net.Conn, error) {
						clientSide, _ := net.Pipe()
						return clientSide, nil
					}
				}
				for range tripAfter {
					began := time.Now()
					_, _, err := client.call(t.Context())
					if c.want == "" && err != nil || c.want != "" &&
						(err == nil || !strings.Contains(err.Error(), c.want)) {
						t.Fatalf("got error %v, want %q", err, c.want)
					}
					if took := time.Since(began); took != c.took && c.took != 0 {
						t.Errorf("the call took %s, want %s", took, c.took)
					}
				}
				if want := map[bool]string{true: "open", false: "closed"}[c.trips]; client.state() != want ||
					(client.Err() != nil) != c.trips {
					t.Errorf("the circuit breaker is %s: %v", client.state(), client.Err())
				}
				client.Close()
				<-time.After(time.Hour)
			})
		})
	}
}

// TestRotations checks that requests use new connections after the client certificate has changed.
func TestRotations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, writes(ok))
		var n atomic.Uint64
		client := newCaller(t, d, Options{Timeout: time.Minute, MaxBytes: 1000, Rotations: n.Load})
		for _, want := range []int64{1, 1, 2, 2} {
			if want == 2 {
				n.Store(1)
			}
			if _, _, err := client.call(t.Context()); err != nil || d.dials.Load() != want {
				t.Errorf("%d connections, %v; want %d", d.dials.Load(), err, want)
			}
		}
		synctest.Wait()
		if open := d.open.Load(); open != 1 {
			t.Errorf("%d connections are open", open)
		}
		client.Close()
		<-time.After(time.Hour)
	})
}

// TestRedirects checks that a redirect is returned to the caller and not followed.
func TestRedirects(t *testing.T) {
	for _, status := range []string{"301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect",
		"308 Permanent Redirect"} {
		d := newDestination(t, host, writes("HTTP/1.1 "+status+"\r\nLocation: https://"+host+
			"/elsewhere\r\nContent-Length: 0\r\n\r\n"))
		client := newCaller(t, d, Options{MaxBytes: 1000})
		code, _, err := client.call(t.Context())
		if err != nil || !strings.HasPrefix(status, strconv.Itoa(code)) || d.requests.Load() != 1 {
			t.Errorf("%s: %d %v, %d requests", status, code, err, d.requests.Load())
		}
		client.Close()
	}
}

// TestGoAway checks that a server that shuts down with HTTP/2 GOAWAY is reported as disconnected once. The next request
// uses another server, and requests in flight succeed.
func TestGoAway(t *testing.T) {
	disconnected, entered, release := make(chan struct{}, 9), make(chan struct{}), make(chan struct{})
	serve := func() *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				entered <- struct{}{}
				<-release
			}
			_, _ = io.WriteString(w, r.Proto)
		}))
		s.EnableHTTP2 = true
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	first, second := serve(), serve()
	to := first.Listener.Addr().String()
	dialer := &Dialer{ControlPlane: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, to)
	}}
	transport, err := dialer.NewTransport(Options{Address: "example.com:443", MaxBytes: 1000,
		CABundle:     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: first.Certificate().Raw}),
		Disconnected: func() { disconnected <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	defer transport.Close()
	get := func(path string) (string, error) {
		resp, err := (&http.Client{Transport: transport}).Get("https://example.com" + path)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	if got, err := get("/"); got != "HTTP/2.0" || err != nil {
		t.Fatal(got, err)
	}
	ended := make(chan error)
	go func() {
		_, err := get("/wait")
		ended <- err
	}()
	<-entered
	to = second.Listener.Addr().String()
	gone := make(chan error)
	go func() { gone <- first.Config.Shutdown(context.Background()) }()
	close(release)
	if err := errors.Join(<-ended, <-gone); err != nil {
		t.Error(err)
	}
	select {
	case <-disconnected:
	case <-time.After(30 * time.Second):
		t.Error("Disconnected was not called")
	}
	if got, err := get("/"); got != "HTTP/2.0" || err != nil {
		t.Error(got, err)
	}
	select {
	case <-disconnected:
		t.Error("Disconnected was called twice")
	default:
	}
}

// pipes is an in-memory listener. It accepts each connection that is sent to the channel.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// cut is a connection that loses everything written to it once its field now is true, as if the peer's machine had
// lost its power.
type cut struct {
	net.Conn
	now *atomic.Bool
}

func (c cut) Write(p []byte) (int, error) {
	if c.now.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// TestPings checks that pings detect a dead HTTP/2 connection long before the timeout of a request.
func TestPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, nil)
		listener, dead, disconnected := make(pipes), new(atomic.Bool), new(atomic.Int64)
		server := &http.Server{
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{d.certificate}},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_,
					_ = io.WriteString(w, r.Proto)
			}),
		}
		go func() { _ = server.ServeTLS(listener, "", "") }()
		dialer := &Dialer{ControlPlane: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			listener <- server
			return cut{client, dead}, nil
		}}
		transport, err := dialer.NewTransport(Options{Address: host + ":443", MaxBytes: 1000, Timeout: time.Hour,
			CABundle: d.ca, Disconnected: func() { disconnected.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		client := &caller{t, transport, nil}
		if _, answer, err := client.call(t.Context()); err != nil || answer != "HTTP/2.0" {
			t.Fatal(answer, err)
		}
		dead.Store(true)
		began := time.Now()
		if _, _, err := client.call(t.Context()); err == nil || time.Since(began) > 2*pingTimeout ||
			disconnected.Load() != 1 {
			t.Errorf("after %s: %v, Disconnected called %d times", time.Since(began), err, disconnected.Load())
		}
		transport.Close()
		_ = server.Close()
		<-time.After(time.Hour)
	})
}

// TestStream checks that a stream has no size limit and counts as a response as soon as it begins. A running watch must
// not keep the circuit breaker half-open.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, writesAndCloses(""))
		client := newCaller(t, d, Options{Timeout: 10 * time.Second})
		client.openBreaker()
		stream := repeats("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "9\r\n123456789\r\n", time.Second)
		d.answer.Store(&stream)
		<-time.After(2 * openFor)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/", nil)
		resp, err := client.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := client.state(); got != "closed" {
			t.Errorf("the circuit breaker is %s while a stream runs", got)
		}
		if n, err := io.CopyN(io.Discard, resp.Body, 600); err != nil { // for over a minute
			t.Errorf("the stream ended after %d bytes: %v", n, err)
		}
		resp.Body.Close()
		answer := silent
		d.answer.Store(&answer)
		began := time.Now()
		if _, err := client.RoundTrip(req); err == nil || time.Since(began) != 10*time.Second {
			t.Errorf("waiting for a response header took %s: %v", time.Since(began), err)
		}
		client.Close()
	})
}

// TestUpgrade checks that the caller owns the connection after an upgrade.
func TestUpgrade(t *testing.T) {
	d := newDestination(t, host, func(c net.Conn, _ *http.Request) {
		_, _ = io.WriteString(c, switched)
		_, _ = io.Copy(c, c)
	})
	client := newCaller(t, d, Options{MaxBytes: 1000})
	defer client.Close()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/", nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := client.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatal("the body of the response is not an io.ReadWriteCloser")
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "hello")
	echo := make([]byte, 5)
	if _, err := io.ReadFull(conn, echo); err != nil || string(echo) != "hello" {
		t.Errorf("%q %v", echo, err)
	}
	if n := client.breaker.circuit.Load().Counts().TotalSuccesses; n != 1 {
		t.Errorf("counted %d successes, want 1", n)
	}
}

// TestReplay checks that a replayable request whose connection fails is sent once more, with its body. Other
// requests are sent only once.
func TestReplay(t *testing.T) {
	for _, replayable := range []bool{true, false} {
		d := newDestination(t, host, writesAndCloses(""))
		client := newCaller(t, d, Options{MaxBytes: 1000, Replayable: replayable})
		var bodies []int64
		breaks := func(c net.Conn, r *http.Request) {
			if bodies = append(bodies, r.ContentLength); len(bodies) == 1 {
				c.Close()
				return
			}
			writes(ok)(c, r)
		}
		d.answer.Store(&breaks)
		_, _, err := client.call(t.Context())
		if (err == nil) != replayable || replayable && (len(bodies) != 2 || bodies[1] != 4) {
			t.Errorf("replayable %v: %v, bodies of %d bytes", replayable, err, bodies)
		}
		client.Close()
	}
}

// TestMetricsOfOddHosts checks that a host in metrics may consist of any bytes: "https://%ff/" is a valid URL.
func TestMetricsOfOddHosts(t *testing.T) {
	d := newDestination(t, host, writes(ok))
	dialer := &Dialer{ControlPlane: d.dial, Metrics: NewMetrics()}
	transport, err := dialer.NewTransport(Options{Name: "test", Address: "\xff:443", MaxBytes: 1000, CABundle: d.ca})
	if err != nil {
		t.Fatal(err)
	}
	defer transport.Close()
	client := &caller{t, transport, dialer.Metrics}
	if _, _, err := client.call(t.Context()); err != nil || client.state() != "closed" {
		t.Errorf("the circuit breaker is %s: %v", client.state(), err)
	}
}

// TestMetricsOfOddMethods checks that unknown methods, which clients choose, share one label value.
func TestMetricsOfOddMethods(t *testing.T) {
	d := newDestination(t, host, writes(ok))
	client := newCaller(t, d, Options{MaxBytes: 1000})
	defer client.Close()
	for _, method := range []string{"PROPFIND", "X", "Y"} {
		req, _ := http.NewRequestWithContext(t.Context(), method, "https://"+host+"/", nil)
		resp, err := client.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	if got := client.metricValues()["rest_client_requests_total{200,"+client.host+",OTHER}"]; got != 3 {
		t.Errorf("got %v requests with method OTHER, want 3: %v", got, client.metricValues())
	}
}

// TestMetrics checks that each request is counted, and that the metrics of a host are deleted when its last Transport
// closes.
func TestMetrics(t *testing.T) {
	d := newDestination(t, host, writes(ok))
	client := newCaller(t, d, Options{MaxBytes: 1000})
	for range 3 {
		if _, _, err := client.call(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	breaks := writesAndCloses("")
	d.answer.Store(&breaks)
	for range tripAfter + 4 {
		_, _, _ = client.call(t.Context())
	}
	got := client.metricValues()
	for name, want := range map[string]float64{
		"rest_client_requests_total{200," + client.host + ",POST}":            3,
		"rest_client_requests_total{<error>," + client.host + ",POST}":        tripAfter,
		"rest_client_request_duration_seconds{" + client.host + ",POST}":      3 + tripAfter,
		"trellis_egress_circuit_breakers{" + client.host + ",test,open}":      1,
		"trellis_egress_circuit_breakers{" + client.host + ",test,closed}":    0,
		"trellis_egress_circuit_breakers{" + client.host + ",test,half-open}": 0,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	client.Close()
	if got := client.metricValues(); len(got) != 0 {
		t.Errorf("metrics after Close: %v", got)
	}
	client.breaker.reset()
	_, _, _ = client.call(t.Context())
	if got := client.metricValues(); len(got) != 0 {
		t.Errorf("metrics of a request after Close: %v", got)
	}
}
