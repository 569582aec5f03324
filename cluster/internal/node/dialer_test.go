package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// startHTTPSProxy starts an HTTPS proxy. It requires a client certificate of keys.CA. It connects every client to the
// address in the parameter to, whatever address the client requests.
func startHTTPSProxy(t *testing.T, keys *pki.Bundle, to string) *url.URL {
	t.Helper()
	p := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server, err := net.Dial("tcp", to)
		if err != nil || r.Method != http.MethodConnect {
			http.Error(w, "no", http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(server, buffered)
			_ = server.Close()
		}()
		_, _ = io.Copy(client, server)
		_ = client.Close()
	}))
	cas := x509.NewCertPool()
	cas.AddCert(keys.CA)
	p.TLS = &tls.Config{Certificates: []tls.Certificate{keys.Serving}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: cas}
	p.StartTLS()
	t.Cleanup(p.Close)
	at, err := url.Parse(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestHTTPSProxyByTheKubeconfig checks that the TLS settings of the kubeconfig also apply to an HTTPS proxy, as in
// client-go.
// SOX-013
func TestHTTPSProxyByTheKubeconfig(t *testing.T) {
	keys, err := pki.Ensure("", []string{"far.example", "127.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{keys.Serving}}
	server.StartTLS()
	t.Cleanup(server.Close)
	at := startHTTPSProxy(t, keys, server.Listener.Addr().String())
	for name, c := range map[string]struct {
		tls rest.TLSClientConfig
		in  bool
	}{
		"a CA and a certificate": {rest.TLSClientConfig{CAData: keys.CAPEM, CertData: keys.AdminCert,
			KeyData: keys.AdminKey}, true},
		"without verification": {rest.TLSClientConfig{Insecure: true, CertData: keys.AdminCert,
			KeyData: keys.AdminKey}, true},
		"without a certificate": {rest.TLSClientConfig{CAData: keys.CAPEM}, false},
		"without the CA": {rest.TLSClientConfig{CertData: keys.AdminCert, KeyData: keys.AdminKey},
			false},
		"the server's name is not the proxy": {rest.TLSClientConfig{CAData: keys.CAPEM, CertData: keys.AdminCert,
			KeyData: keys.AdminKey, ServerName: "other.example"}, false},
	} {
		config := &rest.Config{Host: "https://far.example:6443", TLSClientConfig: c.tls, Proxy: http.ProxyURL(at)}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.Get(config.Host); (err == nil) != c.in {
			t.Errorf("%s: client-go: %v", name, err)
		} else if err == nil {
			_ = resp.Body.Close()
		}
		to, err := apiServerDialer(config)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := to(t.Context())
		if (err == nil) != c.in {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// TestNoProxy checks that NO_PROXY with the server's name or address disables the proxy of the environment, but not the
// proxy-url of the kubeconfig, as in client-go.
// SOX-013
func TestNoProxy(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context()) // prevents connections
	cancel()
	t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
	named := http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.example:3128"})
	for noProxy, direct := range map[string]struct{ name, address bool }{
		"":                         {false, false},
		".example":                 {true, false},
		"far.example":              {true, false},
		"far.example:1":            {false, false},
		"192.0.2.0/24":             {false, true},
		"other.example, 192.0.2.1": {false, true},
		"*":                        {true, true},
	} {
		t.Setenv("NO_PROXY", noProxy)
		for _, c := range []struct {
			config rest.Config
			direct bool
		}{
			{rest.Config{Host: "https://far.example:6443"}, direct.name},
			{rest.Config{Host: "https://192.0.2.1"}, direct.address},
			{rest.Config{Host: "https://far.example:6443", Proxy: named}, false},
		} {
			to, err := apiServerDialer(&c.config)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := to(cancelled); err == nil || strings.Contains(err.Error(), "proxy.example") == c.direct {
				t.Errorf("NO_PROXY=%q: %s: %v", noProxy, c.config.Host, err)
			}
		}
	}
}
