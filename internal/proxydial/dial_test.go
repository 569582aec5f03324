package proxydial_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/proxydial"
	"github.com/trellis-k8s/trellis/internal/socks5"
)

// far is an address that only proxies can resolve. The server at this address sends all received data back.
const far = "far.example:6443"

func dialFar(t *testing.T) proxydial.Dial {
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != far {
			return nil, errors.New("no such host")
		}
		return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// proxyHandler returns an HTTP proxy that requires a user and password.
func proxyHandler(dial proxydial.Dial) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		sent := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
		if name, password, _ := sent.BasicAuth(); name != "jane" || password != "pass word" {
			http.Error(w, "wrong user or password", http.StatusProxyAuthRequired)
			return
		}
		to, err := dial(r.Context(), "tcp", r.Host)
		if err != nil || r.Method != http.MethodConnect {
			http.Error(w, "cannot connect", http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		from, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(to, in)
			_ = to.Close()
		}()
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}
}

func dial(t *testing.T, at string, config *tls.Config, address string) error {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	d, err := proxydial.New(u, config)
	if err != nil {
		return err
	}
	conn, err := d(t.Context(), "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	got := make([]byte, 5)
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("%s: read %q, %v; want \"hello\"", at, got, err)
	}
	return nil
}

// TestSchemes checks connections through a proxy of each scheme. The proxy resolves the host. Errors contain the
// proxy's URL without the password. SOX-004 SOX-013
func TestSchemes(t *testing.T) {
	dialTarget := dialFar(t)
	plain, secured := httptest.NewServer(proxyHandler(dialTarget)), httptest.NewTLSServer(proxyHandler(dialTarget))
	defer plain.Close()
	defer secured.Close()
	trusted := &tls.Config{RootCAs: x509.NewCertPool()}
	trusted.RootCAs.AddCert(secured.Certificate())
	l := listen(t)
	socks := &socks5.Server{MaxConnections: 9, HandshakeTimeout: socks5.HandshakeTimeout,
		DialTimeout: socks5.DialTimeout, Dial: dialTarget, Logger: slog.New(slog.DiscardHandler)}
	go socks.Serve(t.Context(), l)
	user := func(at string) string { return strings.Replace(at, "://", "://jane:pass%20word@", 1) }
	other := trusted.Clone()
	other.ServerName = "other.name"
	for _, c := range []struct {
		at      string
		config  *tls.Config
		address string
		want    string // in the error
	}{
		{user(plain.URL), nil, far, ""},
		{plain.URL, nil, far, "code 407: 407 Proxy Authentication Required: wrong user or password"},
		{user(plain.URL), nil, "near.example:1", `jane:xxxxx@127.0.0.1`},
		{user(plain.URL), nil, "near.example:1",
			`while dialing "near.example:1", code 502: 502 Bad Gateway: cannot connect`},
		{user(secured.URL), trusted, far, ""},
		{user(secured.URL), nil, far, "certificate signed by unknown authority"},
		{user(secured.URL), &tls.Config{InsecureSkipVerify: true}, far, ""},
		{user(secured.URL), other, far, "other.name"}, // like net/http
		{"http://jane:x@" + secured.Listener.Addr().String(), nil, far, "not an HTTP/1 response"},
		{"socks5://" + l.Addr().String(), nil, far, ""},
		{"socks5h://" + l.Addr().String(), nil, far, ""},
		{"socks5://" + l.Addr().String(), nil, "near.example:1", "host unreachable"},
		{"ftp://127.0.0.1", nil, far, "the scheme must be"},
	} {
		if err := dial(t, c.at, c.config, c.address); (err == nil) != (c.want == "") || err != nil &&
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s to %s: got error %v, want %q", c.at, c.address, err, c.want)
		}
	}
}

// TestClientCertificate checks that a proxy that requests a client certificate receives it, as with net/http.
// SOX-013
func TestClientCertificate(t *testing.T) {
	p := httptest.NewUnstartedServer(proxyHandler(dialFar(t)))
	p.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	p.StartTLS()
	defer p.Close()
	at := strings.Replace(p.URL, "://", "://jane:pass%20word@", 1)
	known := &tls.Config{InsecureSkipVerify: true, Certificates: p.TLS.Certificates}
	if err := dial(t, at, known, far); err != nil {
		t.Error(err)
	}
	if err := dial(t, at, &tls.Config{InsecureSkipVerify: true}, far); err == nil ||
		!strings.Contains(err.Error(), "tls:") {
		t.Errorf("without a certificate: %v", err)
	}
}

// TestSilentProxy checks that a dial through a silent proxy ends when its context ends. SOX-013
func TestSilentProxy(t *testing.T) {
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = conn.Read(make([]byte, 1)) // the request has arrived
			cancel()
			_, _ = io.Copy(io.Discard, conn) // until the client closes the connection
		}
		ended <- err
	}()
	d, err := proxydial.New(&url.URL{Scheme: "http", Host: l.Addr().String()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d(ctx, "tcp", far); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
