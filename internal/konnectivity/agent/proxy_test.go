package agent

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
	"github.com/trellis-k8s/trellis/internal/socks5"
)

// proxies starts an HTTP and a SOCKS proxy that resolve the name servers.example to a server. Nothing else
// resolves this name.
func proxies(t *testing.T, to string) (connect, socks string) {
	t.Helper()
	_, port, _ := net.SplitHostPort(to)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != "servers.example:"+port {
			return nil, &net.DNSError{Err: "no such host", Name: address, IsNotFound: true}
		}
		return new(net.Dialer).DialContext(ctx, network, to)
	}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		credentials := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
		far, err := dial(r.Context(), "tcp", r.Host)
		if name, password, _ := credentials.BasicAuth(); err != nil || r.Method != http.MethodConnect ||
			name != "agent" || password != "pass" {
			http.Error(w, "forbidden", http.StatusForbidden)
			return
		}
		w.WriteHeader(http.StatusOK)
		near, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(far, in)
			_ = far.Close()
		}()
		_, _ = io.Copy(near, far)
		_ = near.Close()
	}))
	t.Cleanup(h.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &socks5.Server{MaxConnections: 9, HandshakeTimeout: socks5.HandshakeTimeout, DialTimeout: socks5.DialTimeout,
		Dial: dial, Logger: slog.New(slog.DiscardHandler)}
	go s.Serve(t.Context(), l)
	return strings.Replace(h.URL, "://", "://agent:pass@", 1), "socks5://" + l.Addr().String()
}

// TestThroughProxy checks that an agent connects to its server through the proxy in HTTPS_PROXY, which
// resolves the server's name (SOX-013).
func TestThroughProxy(t *testing.T) {
	dir := t.TempDir()
	caFile, _, certificate := serverPair(t, dir, "server")
	c := Config{
		Host: "servers.example", ID: "a", CAFile: caFile, TokenFile: write(t, dir, "token", []byte("a.b.c")),
		KeepaliveTime: time.Minute, SyncInterval: time.Millisecond, SyncIntervalCap: time.Second,
		HealthAddress: "127.0.0.1:0", AdminAddress: "127.0.0.1:0",
	}
	for i := range 2 {
		s := server.New(server.Options{ID: "s", Count: 1, Strategies: []server.Strategy{server.Default},
			KeepaliveTime: time.Minute, Authenticate: func(context.Context, string) error { return nil },
			Logger: slog.New(slog.DiscardHandler)})
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate},
			NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = s.ServeAgents(l) }()
		c.Port = l.Addr().(*net.TCPAddr).Port
		connect, socks := proxies(t, l.Addr().String())
		t.Setenv("HTTPS_PROXY", []string{connect, socks}[i])
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- Run(ctx, c) }()
		for tick, limit := time.NewTicker(time.Millisecond), time.After(30*time.Second); !s.Ready(); {
			select {
			case <-tick.C:
			case <-limit:
				t.Fatalf("no agent has connected through %s", []string{connect, socks}[i])
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		s.Shutdown(ctx)
	}
}

// TestNoProxy checks that a server name in NO_PROXY is resolved locally and dialled directly. An address in
// NO_PROXY is also dialled directly (SOX-013).
func TestNoProxy(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context()) // prevents real connections
	cancel()
	t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
	c := &Config{Host: "servers.example", Port: 8132}
	for noProxy, want := range map[string]struct{ resolved, nameDirect, addressDirect bool }{
		"":                {false, false, false},
		".example":        {true, true, true},
		"servers.example": {true, true, true},
		"192.0.2.0/24":    {false, false, true},
		"192.0.2.1:1":     {false, false, false},
		"other.example":   {false, false, false},
	} {
		t.Setenv("NO_PROXY", noProxy)
		hosts, err := c.lookupHost(canceled, c.Host)
		if resolved := !slices.Equal(hosts, []string{c.Host}); resolved != want.resolved {
			t.Errorf("NO_PROXY=%q: got hosts %q, error %v; want resolved %t", noProxy, hosts, err, want.resolved)
		}
		for address, direct := range map[string]bool{"servers.example:" + strconv.Itoa(c.Port): want.nameDirect,
			"192.0.2.1:8132": want.addressDirect} {
			_, err := dialServer(canceled, address, &tls.Config{ServerName: c.Host})
			if err == nil || strings.Contains(err.Error(), "proxy.example") == direct {
				t.Errorf("NO_PROXY=%q: %s: got error %v, want direct %t", noProxy, address, err, direct)
			}
		}
	}
}
