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

// Whatever a destination does, a call ends in time, says why, and the circuit breaker opens for one that does not answer.
func TestFaults(t *testing.T) {
	const timeout = 20 * time.Second
	for name, c := range map[string]struct {
		answer  func(net.Conn, *http.Request)
		other   bool          // its certificate is another one's
		named   string        // the name in its certificate; "" is the right one
		refuses bool          // connections
		raw     bool          // it takes connections and says nothing, nor begins TLS
		want    string        // in the error; "": there is none
		took    time.Duration // a call
		trips   bool
	}{
		"it answers":                  {answer: says(ok)},
		"nobody listens":              {refuses: true, want: "connection refused", trips: true},
		"it does not answer":          {answer: silent, want: "deadline exceeded", took: timeout, trips: true},
		"it does not begin TLS":       {raw: true, want: "TLS handshake timeout", took: handshakeTimeout, trips: true},
		"it hangs up":                 {answer: ends(""), want: "EOF", trips: true},
		"half a header":               {answer: ends("HTTP/1.1 200"), want: "unexpected EOF", trips: true},
		"half an answer":              {answer: ends("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), want: "unexpected EOF", trips: true},
		"half an answer and silence":  {answer: says("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), want: "deadline exceeded", took: timeout, trips: true},
		"a byte a second":             {answer: repeats("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", "x", time.Second), want: "deadline exceeded", took: timeout, trips: true},
		"an endless answer":           {answer: repeats("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "9\r\n123456789\r\n", 0), want: "larger than 1000 bytes"},
		"a large answer":              {answer: says("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + strings.Repeat("x", 1001)), want: "larger than 1000 bytes"},
		"as large as may be":          {answer: says("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + strings.Repeat("x", 1000))},
		"an endless header":           {answer: repeats("HTTP/1.1 200 OK\r\n", "x: "+strings.Repeat("x", 1<<10)+"\r\n", 0), want: "headers exceeded 1048576 bytes", trips: true},
		"it speaks something else":    {answer: ends("SSH-2.0-OpenSSH\r\n"), want: "malformed HTTP", trips: true},
		"an unknown certificate":      {answer: says(ok), other: true, want: "x509: certificate signed by unknown authority", trips: true},
		"another name's certificate":  {answer: says(ok), named: "other.example.com", want: "x509: certificate is valid for other.example.com", trips: true},
		"another protocol, unasked":   {answer: says(switched), want: "not asked for", trips: true},
		"and endless":                 {answer: repeats(switched, strings.Repeat("x", 1<<10), 0), want: "not asked for", trips: true},
		"an error":                    {answer: says("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")},
		"a redirect":                  {answer: says("HTTP/1.1 302 Found\r\nLocation: https://elsewhere/\r\nContent-Length: 0\r\n\r\n")},
		"a redirect of the same kind": {answer: says("HTTP/1.1 307 Temporary Redirect\r\nLocation: https://elsewhere/\r\nContent-Length: 0\r\n\r\n")},
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
						ours, _ := net.Pipe()
						return ours, nil
					}
				}
				for range tripAfter {
					began := time.Now()
					_, _, err := client.call(t.Context())
					if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
						t.Fatalf("%v, want %q", err, c.want)
					}
					if took := time.Since(began); took != c.took && c.took != 0 {
						t.Errorf("it took %s, want %s", took, c.took)
					}
				}
				if want := map[bool]string{true: "open", false: "closed"}[c.trips]; client.state() != want || (client.Err() != nil) != c.trips {
					t.Errorf("the circuit breaker is %s: %v", client.state(), client.Err())
				}
				client.Close()
				<-time.After(time.Hour)
			})
		})
	}
}

// Requests get new connections after the client certificate has changed.
func TestRotations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, says(ok))
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

// A redirect is the answer, and has nobody be called elsewhere.
func TestRedirects(t *testing.T) {
	for _, status := range []string{"301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"} {
		d := newDestination(t, host, says("HTTP/1.1 "+status+"\r\nLocation: https://"+host+"/elsewhere\r\nContent-Length: 0\r\n\r\n"))
		client := newCaller(t, d, Options{MaxBytes: 1000})
		code, _, err := client.call(t.Context())
		if err != nil || !strings.HasPrefix(status, strconv.Itoa(code)) || d.requests.Load() != 1 {
			t.Errorf("%s: %d %v, %d requests", status, code, err, d.requests.Load())
		}
		client.Close()
	}
}

// A server that goes away says so over HTTP/2, with GOAWAY. That is told once, and the next request goes elsewhere; what is
// under way ends well.
func TestGoAway(t *testing.T) {
	broke, entered, leave := make(chan struct{}, 9), make(chan struct{}), make(chan struct{})
	serve := func() *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				entered <- struct{}{}
				<-leave
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
	transport, err := dialer.NewTransport(Options{Address: "example.com:443", MaxBytes: 1000, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: first.Certificate().Raw}), Disconnected: func() { broke <- struct{}{} }})
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
	close(leave)
	if err := errors.Join(<-ended, <-gone); err != nil {
		t.Error(err)
	}
	select {
	case <-broke:
	case <-time.After(30 * time.Second):
		t.Error("not told")
	}
	if got, err := get("/"); got != "HTTP/2.0" || err != nil {
		t.Error(got, err)
	}
	select {
	case <-broke:
		t.Error("told twice")
	default:
	}
}

// pipes is a listener without a network; accept takes the server's side of a connection.
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

// cut is a connection on which nothing arrives any longer, as when a machine has lost its power.
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

// Pings find a connection over HTTP/2 that is dead without having ended, long before the time-out of a request.
func TestPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, nil)
		listener, dead, broke := make(pipes), new(atomic.Bool), new(atomic.Int64)
		server := &http.Server{
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{d.certificate}},
			Handler:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }),
		}
		go func() { _ = server.ServeTLS(listener, "", "") }()
		dialer := &Dialer{ControlPlane: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			listener <- server
			return cut{client, dead}, nil
		}}
		transport, err := dialer.NewTransport(Options{Address: host + ":443", MaxBytes: 1000, Timeout: time.Hour, CABundle: d.ca, Disconnected: func() { broke.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		client := &caller{t, transport, nil}
		if _, answer, err := client.call(t.Context()); err != nil || answer != "HTTP/2.0" {
			t.Fatal(answer, err)
		}
		dead.Store(true)
		began := time.Now()
		if _, _, err := client.call(t.Context()); err == nil || time.Since(began) > 2*pingTimeout || broke.Load() != 1 {
			t.Errorf("after %s: %v, told %d times", time.Since(began), err, broke.Load())
		}
		transport.Close()
		_ = server.Close()
		<-time.After(time.Hour)
	})
}

// A stream has no bound, and is an answer as soon as it begins: a watch that runs does not keep the circuit breaker half-open.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, ends(""))
		client := newCaller(t, d, Options{Timeout: 10 * time.Second})
		client.fails()
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
			t.Errorf("it ended after %d bytes: %v", n, err)
		}
		resp.Body.Close()
		answer := silent
		d.answer.Store(&answer)
		began := time.Now()
		if _, err := client.RoundTrip(req); err == nil || time.Since(began) != 10*time.Second {
			t.Errorf("a header that does not come is waited for %s: %v", time.Since(began), err)
		}
		client.Close()
	})
}

// The connection of an upgrade is the caller's.
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
		t.Fatal("nothing can be written")
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "hello")
	echo := make([]byte, 5)
	if _, err := io.ReadFull(conn, echo); err != nil || string(echo) != "hello" {
		t.Errorf("%q %v", echo, err)
	}
	if n := client.breaker.circuit.Load().Counts().TotalSuccesses; n != 1 {
		t.Errorf("it counts as %d answers", n)
	}
}

// What is refused or broken off is sent once more, with its body, if two requests do no harm; a time-out is not.
func TestReplay(t *testing.T) {
	for _, replayable := range []bool{true, false} {
		d := newDestination(t, host, ends(""))
		client := newCaller(t, d, Options{MaxBytes: 1000, Replayable: replayable})
		var bodies []int64
		breaks := func(c net.Conn, r *http.Request) {
			if bodies = append(bodies, r.ContentLength); len(bodies) == 1 {
				c.Close()
				return
			}
			says(ok)(c, r)
		}
		d.answer.Store(&breaks)
		_, _, err := client.call(t.Context())
		if (err == nil) != replayable || replayable && (len(bodies) != 2 || bodies[1] != 4) {
			t.Errorf("replayable %v: %v, bodies of %d bytes", replayable, err, bodies)
		}
		client.Close()
	}
}

// A host may be any bytes: "https://%ff/" is a URL.
func TestMetricsOfOddHosts(t *testing.T) {
	d := newDestination(t, host, says(ok))
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

// A client's own word for a method is not kept for ever.
func TestMetricsOfOddMethods(t *testing.T) {
	d := newDestination(t, host, says(ok))
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
	if got := client.shows()["rest_client_requests_total{200,"+client.host+",OTHER}"]; got != 3 {
		t.Errorf("%v are counted: %v", got, client.shows())
	}
}

// Metrics count each request that is sent, and forget a host that nobody calls any longer.
func TestMetrics(t *testing.T) {
	d := newDestination(t, host, says(ok))
	client := newCaller(t, d, Options{MaxBytes: 1000})
	for range 3 {
		if _, _, err := client.call(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	breaks := ends("")
	d.answer.Store(&breaks)
	for range tripAfter + 4 {
		_, _, _ = client.call(t.Context())
	}
	got := client.shows()
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
	if got := client.shows(); len(got) != 0 {
		t.Errorf("still there: %v", got)
	}
	client.breaker.reset()
	_, _, _ = client.call(t.Context())
	if got := client.shows(); len(got) != 0 {
		t.Errorf("there again: %v", got)
	}
}
