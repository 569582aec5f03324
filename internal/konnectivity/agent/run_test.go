package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/cert"
)

// serverPair writes a certificate for 127.0.0.1 and servers.example, and its key. It returns their file names and
// the loaded certificate. The certificate file also contains the CA that signed the certificate.
func serverPair(t *testing.T, dir, name string) (certFile, keyFile string, loaded tls.Certificate) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("servers.example", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if loaded, err = tls.X509KeyPair(certificate, key); err != nil {
		t.Fatal(err)
	}
	return write(t, dir, name+".crt", certificate), write(t, dir, name+".key", key), loaded
}

// clientPair writes a self-signed client certificate and its key. It returns their files and the DER encoding.
func clientPair(t *testing.T, dir string) (certFile, keyFile string, raw []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "agent"},
		NotAfter: time.Now().Add(time.Hour)}
	raw, err = x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile = write(t, dir, "agent.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
	return certFile, write(t, dir, "agent.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), raw
}

func write(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// handshake performs a TLS handshake of the agent with a server, and returns the connection state of the
// server.
func handshake(t *testing.T, c *Config, server *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	o, err := c.options(NewMetrics())
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	states := make(chan tls.ConnectionState, 1)
	go func() {
		defer close(states)
		if conn, err := l.Accept(); err == nil {
			defer conn.Close()
			x := conn.(*tls.Conn)
			_ = x.Handshake()
			states <- x.ConnectionState()
			_, _ = io.Copy(io.Discard, x)
		}
	}()
	conn, err := tls.Dial("tcp", l.Addr().String(), o.TLS)
	if err == nil {
		err = conn.Close()
	}
	return <-states, err
}

// TestServerIsVerified checks that the server's certificate must be issued by --ca-cert for the name in
// --proxy-server-host (KON-038).
func TestServerIsVerified(t *testing.T) {
	dir := t.TempDir()
	caFile, _, trusted := serverPair(t, dir, "trusted")
	_, _, untrusted := serverPair(t, dir, "untrusted")
	for _, c := range []struct {
		host, ca string
		server   *tls.Config
		want     string
	}{
		{"servers.example", caFile, &tls.Config{Certificates: []tls.Certificate{trusted}}, ""},
		{"127.0.0.1", caFile, &tls.Config{Certificates: []tls.Certificate{trusted}}, ""},
		{"other.example", caFile, &tls.Config{Certificates: []tls.Certificate{trusted}}, "not other.example"},
		{"servers.example", caFile, &tls.Config{Certificates: []tls.Certificate{untrusted}}, "unknown authority"},
		{"servers.example", "", &tls.Config{Certificates: []tls.Certificate{trusted}}, "unknown authority"},
		{"servers.example", caFile, &tls.Config{Certificates: []tls.Certificate{trusted}, MaxVersion: tls.VersionTLS11},
			"protocol version"},
	} {
		_, err := handshake(t, &Config{Host: c.host, CAFile: c.ca}, c.server)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("host %s, CA %q: got error %v, want %q", c.host, c.ca, err, c.want)
		}
	}
}

// TestFilesAreReadAgain checks that the CA and the certificate are read for each connection, so that they can
// be replaced while the agent runs (KON-038).
func TestFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	c := &Config{Host: "servers.example", ALPN: []string{"tunnel"}}
	for range 2 {
		var server tls.Certificate
		var want []byte
		c.CAFile, _, server = serverPair(t, dir, "ca")
		c.CertFile, c.KeyFile, want = clientPair(t, dir)
		state, err := handshake(t, c, &tls.Config{Certificates: []tls.Certificate{server},
			ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"}})
		if err != nil || len(state.PeerCertificates) != 1 || !slices.Equal(state.PeerCertificates[0].Raw, want) {
			t.Errorf("the server received %d certificates, want the one in the file; error %v",
				len(state.PeerCertificates), err)
		}
		if state.NegotiatedProtocol != "h2" {
			t.Errorf("negotiated protocol %q, want h2", state.NegotiatedProtocol)
		}
		if state, err = handshake(t, c, &tls.Config{Certificates: []tls.Certificate{server},
			NextProtos: []string{"tunnel"}}); err != nil || state.NegotiatedProtocol != "tunnel" {
			t.Errorf("negotiated protocol %q, want the one of --alpn-proto; error %v", state.NegotiatedProtocol, err)
		}
	}
}

// TestRejectedCertificate checks that the error names the flags to check when the server rejects the agent's
// certificate (KON-038, KON-039).
func TestRejectedCertificate(t *testing.T) {
	dir := t.TempDir()
	caFile, _, trusted := serverPair(t, dir, "ca")
	certFile, keyFile, _ := clientPair(t, dir)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for name, c := range map[string]*Config{
			"no certificate":      {Host: "127.0.0.1", CAFile: caFile},
			"unknown certificate": {Host: "127.0.0.1", CAFile: caFile, CertFile: certFile, KeyFile: keyFile},
			// the agent rejects the server's certificate
			"invalid server": {Host: "other.example", CAFile: caFile},
		} {
			l := acceptTLS(t, &tls.Config{Certificates: []tls.Certificate{trusted},
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(), MaxVersion: version})
			_, err := c.connectOnce(t.Context(), l, NewMetrics())
			// TLS 1.2 reports only a failed handshake
			want := name == "unknown certificate" || name == "no certificate" && version == tls.VersionTLS13
			if err == nil || strings.Contains(err.Error(), "--agent-cert") != want ||
				strings.Contains(err.Error(), "--cluster-ca-cert") != want {
				t.Errorf("TLS version %x, %s: got error %v, explained %t", version, name, err, want)
			}
		}
	}
}

// TestLocalTLSError checks that the error has no hint about the agent's certificate if the agent rejects the
// server's certificate.
func TestLocalTLSError(t *testing.T) {
	local := &net.OpError{Op: "local error", Err: errors.New("tls: bad certificate")}
	if err := explainTLSError(local); err != local {
		t.Error(err)
	}
}

// acceptTLS performs the handshake with one client and discards its data.
func acceptTLS(t *testing.T, c *tls.Config) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer l.Close()
		if conn, err := l.Accept(); err == nil {
			defer conn.Close()
			_ = tls.Server(conn, c).Handshake()
			_, _ = io.Copy(io.Discard, conn)
		}
	}()
	return l.Addr().String()
}

// TestTokenIsReadAgain checks that the token file is read for each connection, because the token in it is renewed
// (KON-041).
func TestTokenIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	c := &Config{Host: "servers", TokenFile: write(t, dir, "token", []byte("first\n"))}
	o, err := c.options(NewMetrics())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"first", "second"} {
		write(t, dir, "token", []byte(want+"\n"))
		if got, err := o.Token(); got != want || err != nil {
			t.Errorf("got token %q, error %v; want %q", got, err, want)
		}
	}
	write(t, dir, "token", nil)
	if _, err := o.Token(); err == nil || !strings.Contains(err.Error(),
		"--service-account-token-path: "+c.TokenFile+" contains no token") {
		t.Errorf("empty token file: got error %v", err)
	}
	if o, err := (&Config{Host: "servers"}).options(NewMetrics()); err != nil || o.Token != nil {
		t.Errorf("no token file: error %v, or Token is set", err)
	}
}

// runConfig returns the Config of an agent whose server listens on l.
func runConfig(t *testing.T, l net.Listener) Config {
	t.Helper()
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	return Config{
		Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, SyncInterval: 10 * time.Millisecond,
		SyncIntervalCap: 50 * time.Millisecond,
		LeaseSelector:   labels.Everything(), HealthAddress: free(), AdminAddress: free(),
	}
}

// get requests a URL until it receives a response.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if r, err := http.Get(url); err == nil {
			data, _ := io.ReadAll(r.Body)
			r.Body.Close()
			return r.StatusCode, string(data)
		}
	}
	t.Fatalf("%s: no response", url)
	return 0, ""
}

// TestRun checks that the agent retries until its server is reachable, serves its health and admin ports
// meanwhile, and stops when its context ends (KON-039, KON-043, KON-040, KON-052).
func TestRun(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := runConfig(t, l)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Run(ctx, c) }()
	for range 3 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	for path, want := range map[string]int{"/healthz": 200, "/livez": 200, "/readyz": 503, "/ready": 503,
		"/metrics": 200} {
		if status, body := get(t, "http://"+c.HealthAddress+path); status != want {
			t.Errorf("%s: got %d %s, want %d", path, status, body, want)
		}
	}
	if _, body := get(t, "http://"+c.AdminAddress+"/metrics"); !strings.Contains(body,
		"\nkonnectivity_network_proxy_agent_open_server_connections 0\n") {
		t.Errorf("unexpected metrics: %s", body)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := http.Get("http://" + c.HealthAddress + "/healthz"); err == nil {
		t.Error("the health port is open after Run")
	}
}

// TestRunInvalidConfig checks that Run fails for an invalid configuration, with an error that names the flag.
func TestRunInvalidConfig(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	empty := write(t, t.TempDir(), "empty", nil)
	for want, change := range map[string]func(*Config){
		"--ca-cert":             func(c *Config) { c.CAFile = empty },
		"--agent-cert":          func(c *Config) { c.CertFile, c.KeyFile = empty, empty },
		"--health-server-port":  func(c *Config) { c.HealthAddress = l.Addr().String() },
		"--admin-server-port":   func(c *Config) { c.AdminAddress = l.Addr().String() },
		"--count-server-leases": func(c *Config) { c.CountLeases, c.Kubeconfig = true, empty },
	} {
		c := runConfig(t, l)
		change(&c)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if err := Run(ctx, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one that contains %s", err, want)
		}
		cancel()
	}
}

// TestRunReadsLeases checks that Leases are read with the kubeconfig, the namespace and the label selector of
// the flags (KON-055).
func TestRunReadsLeases(t *testing.T) {
	requests := make(chan string, 100)
	api := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r.URL.Path + "?" + r.URL.Query().Get("labelSelector") + " " + r.Header.Get("Accept")
		http.Error(w, "no", http.StatusForbidden)
	})}
	apiListener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = api.Serve(apiListener) }()
	defer api.Close()
	c := runConfig(t, apiListener)
	c.CountLeases, c.LeaseNamespace, c.APIContentType = true, "tunnels", "application/vnd.kubernetes.protobuf"
	c.LeaseSelector = labels.SelectorFromSet(labels.Set{"tunnel": "server"})
	c.Kubeconfig = write(t, t.TempDir(), "kubeconfig", fmt.Appendf(nil,
		"apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: "+
			"'http://%s'}}]\ncontexts: [{name: c, context: {cluster: c, user: ''}}]\n", apiListener.Addr()))
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Run(ctx, c) }()
	request := <-requests // the agent's TLS connections to this plain HTTP server cause no requests
	if want := "/apis/coordination.k8s.io/v1/namespaces/tunnels/leases?tunnel=server " +
		"application/vnd.kubernetes.protobuf"; !strings.HasPrefix(request, want) {
		t.Errorf("got request %s, want %s", request, want)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestNamesOfThisMachine checks that an IP address of this machine is dialled, and a name that resolves to
// this machine is not (KON-044).
func TestNamesOfThisMachine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	c, err := dialDestination(t.Context(), "tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if c, err := dialDestination(t.Context(), "tcp", "localhost:"+port); err == nil ||
		!strings.Contains(err.Error(), "must not resolve to") {
		t.Errorf("localhost: got %v, error %v", c, err)
	}
}
