package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	testclock "k8s.io/utils/clock/testing"
)

// TestShutdownWithALateConnection checks that a client whose TLS handshake ends after the shutdown has begun, and that
// sends no request, does not delay the shutdown.
func TestShutdownWithALateConnection(t *testing.T) {
	s, err := Start(t.Context(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(s.URL(), "https://")
	early, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	down := make(chan error)
	go func() { down <- s.Shutdown() }()
	for refused := false; !refused; {
		c, err := net.Dial("tcp", address)
		if refused = err != nil; !refused {
			c.Close()
		}
	}
	client := tls.Client(early, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if _, err := client.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := http2.NewFramer(client, client).WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := <-down; err != nil {
		t.Fatal(err)
	}
}

// TestShutdownDelay checks that in the time of --shutdown-delay-duration, /readyz fails, and that /livez and other
// requests, also writes, succeed. The server then stops.
func TestShutdownDelay(t *testing.T) {
	c := testclock.NewFakeClock(time.Now())
	s, err := Start(t.Context(), Config{ShutdownDelay: time.Minute, Clock: c})
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: s.Loopback().Transport}
	request := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if code, text := request("GET", "/readyz/shutdown", ""); code != http.StatusOK {
		t.Fatal(code, text)
	}
	down := make(chan error, 1)
	go func() { down <- s.Shutdown() }()
	<-s.unready
	if code, text := request("GET", "/readyz", ""); code != http.StatusInternalServerError ||
		!strings.Contains(text, "[-]shutdown failed") {
		t.Error(code, text)
	}
	if code, text := request("GET", "/livez", ""); code != http.StatusOK {
		t.Error(code, text)
	}
	if code, text := request("POST", "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"late"}}`); code != http.StatusCreated {
		t.Error(code, text)
	}
	select {
	case err := <-down:
		t.Fatal("the server has stopped early:", err)
	default:
	}
	for {
		select {
		case err := <-down:
			if err != nil {
				t.Fatal(err)
			}
			return
		case <-time.After(10 * time.Millisecond):
			c.Step(time.Minute)
		}
	}
}

// TestGoaway checks that with --goaway-chance, clients of HTTP/2 connect again, and that no request fails.
func TestGoaway(t *testing.T) {
	const requests = 200
	for _, chance := range []float64{0, 0.5} {
		s, err := Start(t.Context(), Config{GoawayChance: chance})
		if err != nil {
			t.Fatal(err)
		}
		var dials atomic.Int32 // The transport dials in goroutines, which can outlast the request.
		config := s.ClientConfig()
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(config.CAData)
		transport := &http.Transport{
			ForceAttemptHTTP2: true,
			TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				dials.Add(1)
				return new(net.Dialer).DialContext(ctx, network, address)
			},
		}
		for range requests {
			resp, err := (&http.Client{Transport: transport}).Get(s.URL() + "/readyz")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Proto != "HTTP/2.0" {
				t.Fatal(resp.Proto, err)
			}
			resp.Body.Close()
		}
		n := dials.Load()
		if chance == 0 && n != 1 || chance > 0 && (n < requests/4 || n > requests*3/4) {
			t.Errorf("chance %v: %d connections for %d requests", chance, n, requests)
		}
		if err := s.Shutdown(); err != nil {
			t.Fatal(err)
		}
	}
}
