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

// pair writes a certificate of a CA of its own, for 127.0.0.1 and servers.example, and its key. The CA lies behind it.
func pair(t *testing.T, dir, name string) (certFile, keyFile string, loaded tls.Certificate) {
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

// clientPair writes a certificate of a client, which is its own CA.
func clientPair(t *testing.T, dir string) (certFile, keyFile string, raw []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "agent"}, NotAfter: time.Now().Add(time.Hour)}
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

// shake has an agent's options and a server's shake hands, and returns what the server saw.
func shake(t *testing.T, c *Config, server *tls.Config) (tls.ConnectionState, error) {
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
	saw := make(chan tls.ConnectionState, 1)
	go func() {
		defer close(saw)
		if conn, err := l.Accept(); err == nil {
			defer conn.Close()
			x := conn.(*tls.Conn)
			_ = x.Handshake()
			saw <- x.ConnectionState()
			_, _ = io.Copy(io.Discard, x)
		}
	}()
	conn, err := tls.Dial("tcp", l.Addr().String(), o.TLS)
	if err == nil {
		err = conn.Close()
	}
	return <-saw, err
}

// KON-038: the CA of --ca-cert alone says whose certificate is good, for the name of --proxy-server-host.
func TestServerIsVerified(t *testing.T) {
	dir := t.TempDir()
	caFile, _, ours := pair(t, dir, "ours")
	_, _, theirs := pair(t, dir, "theirs")
	for _, c := range []struct {
		host, ca string
		server   *tls.Config
		want     string
	}{
		{"servers.example", caFile, &tls.Config{Certificates: []tls.Certificate{ours}}, ""},
		{"127.0.0.1", caFile, &tls.Config{Certificates: []tls.Certificate{ours}}, ""},
		{"other.example", caFile, &tls.Config{Certificates: []tls.Certificate{ours}}, "not other.example"},
		{"servers.example", caFile, &tls.Config{Certificates: []tls.Certificate{theirs}}, "unknown authority"},
		{"servers.example", "", &tls.Config{Certificates: []tls.Certificate{ours}}, "unknown authority"},
		{"servers.example", caFile, &tls.Config{Certificates: []tls.Certificate{ours}, MaxVersion: tls.VersionTLS11}, "protocol version"},
	} {
		_, err := shake(t, &Config{Host: c.host, CAFile: c.ca}, c.server)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s by %q: %v, want %q", c.host, c.ca, err, c.want)
		}
	}
}

// KON-038: the files are read at each connection, so that CAs and certificates are changed under a running agent.
func TestFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	c := &Config{Host: "servers.example", ALPN: []string{"tunnel"}}
	for range 2 {
		var server tls.Certificate
		var shown []byte
		c.CAFile, _, server = pair(t, dir, "ca")
		c.CertFile, c.KeyFile, shown = clientPair(t, dir)
		state, err := shake(t, c, &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"}})
		if err != nil || len(state.PeerCertificates) != 1 || !slices.Equal(state.PeerCertificates[0].Raw, shown) {
			t.Errorf("the server saw %d certificates, not the one of the file now: %v", len(state.PeerCertificates), err)
		}
		if state.NegotiatedProtocol != "h2" {
			t.Errorf("speaks %q", state.NegotiatedProtocol)
		}
		if state, err = shake(t, c, &tls.Config{Certificates: []tls.Certificate{server}, NextProtos: []string{"tunnel"}}); err != nil || state.NegotiatedProtocol != "tunnel" {
			t.Errorf("--alpn-proto is not offered: %q, %v", state.NegotiatedProtocol, err)
		}
	}
}

// KON-038, KON-039: of a certificate that the server refuses, the error says what to look at.
func TestRefusedCertificate(t *testing.T) {
	dir := t.TempDir()
	caFile, _, ours := pair(t, dir, "ca")
	certFile, keyFile, _ := clientPair(t, dir)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for shown, c := range map[string]*Config{
			"none":         {Host: "127.0.0.1", CAFile: caFile},
			"of nobody":    {Host: "127.0.0.1", CAFile: caFile, CertFile: certFile, KeyFile: keyFile},
			"by the agent": {Host: "other.example", CAFile: caFile}, // which refuses the server's
		} {
			l := listens(t, &tls.Config{Certificates: []tls.Certificate{ours}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(), MaxVersion: version})
			_, err := c.connectOnce(t.Context(), l, NewMetrics())
			want := shown == "of nobody" || shown == "none" && version == tls.VersionTLS13 // the one before says that the handshake has failed
			if err == nil || strings.Contains(err.Error(), "--agent-cert") != want || strings.Contains(err.Error(), "--cluster-ca-cert") != want {
				t.Errorf("%x, %s: %v", version, shown, err)
			}
		}
	}
}

// What the agent itself says of a certificate is not of its own.
func TestCertificateIsNotTheAgents(t *testing.T) {
	local := &net.OpError{Op: "local error", Err: errors.New("tls: bad certificate")}
	if err := explainTLSError(local); err != local {
		t.Error(err)
	}
}

// listens shakes hands with one client, and reads what that sends.
func listens(t *testing.T, c *tls.Config) (address string) {
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

// KON-041: the token is read at each connection, as it is renewed in its file.
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
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	write(t, dir, "token", nil)
	if _, err := o.Token(); err == nil || !strings.Contains(err.Error(), "--service-account-token-path: "+c.TokenFile+" contains no token") {
		t.Errorf("an empty file: %v", err)
	}
	if o, err := (&Config{Host: "servers"}).options(NewMetrics()); err != nil || o.Token != nil {
		t.Errorf("without a file: %v", err)
	}
}

// started is the Config of an agent of a server that listens at l.
func started(t *testing.T, l net.Listener) Config {
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
		Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, SyncInterval: 10 * time.Millisecond, SyncIntervalCap: 50 * time.Millisecond,
		LeaseSelector: labels.Everything(), HealthAddress: free(), AdminAddress: free(),
	}
}

// get asks until there is an answer.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if r, err := http.Get(url); err == nil {
			data, _ := io.ReadAll(r.Body)
			r.Body.Close()
			return r.StatusCode, string(data)
		}
	}
	t.Fatalf("%s: no answer", url)
	return 0, ""
}

// KON-039, KON-043, KON-040, KON-052: an agent dials its server, again and again until it is there, has its health and admin ports
// meanwhile, and ends with its context.
func TestRun(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := started(t, l)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Run(ctx, c) }()
	for range 3 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.Close() // is no server
	}
	for path, want := range map[string]int{"/healthz": 200, "/livez": 200, "/readyz": 503, "/ready": 503, "/metrics": 200} {
		if status, body := get(t, "http://"+c.HealthAddress+path); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if _, body := get(t, "http://"+c.AdminAddress+"/metrics"); !strings.Contains(body, "\nkonnectivity_network_proxy_agent_open_server_connections 0\n") {
		t.Errorf("metrics: %s", body)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := http.Get("http://" + c.HealthAddress + "/healthz"); err == nil {
		t.Error("the health port is open at the end")
	}
}

// What cannot work is said at the start, with the flag it is about.
func TestRunRefuses(t *testing.T) {
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
		c := started(t, l)
		change(&c)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if err := Run(ctx, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something about %s", err, want)
		}
		cancel()
	}
}

// KON-055: Leases are read by the kubeconfig, in its namespace and by the selector.
func TestRunReadsLeases(t *testing.T) {
	asked := make(chan string, 100)
	api := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path + "?" + r.URL.Query().Get("labelSelector") + " " + r.Header.Get("Accept")
		http.Error(w, "no", http.StatusForbidden)
	})}
	apiAt, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = api.Serve(apiAt) }()
	defer api.Close()
	c := started(t, apiAt)
	c.CountLeases, c.LeaseNamespace, c.APIContentType = true, "tunnels", "application/vnd.kubernetes.protobuf"
	c.LeaseSelector = labels.SelectorFromSet(labels.Set{"tunnel": "server"})
	c.Kubeconfig = write(t, t.TempDir(), "kubeconfig", fmt.Appendf(nil,
		"apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://%s'}}]\ncontexts: [{name: c, context: {cluster: c, user: ''}}]\n", apiAt.Addr()))
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Run(ctx, c) }()
	path := <-asked // TLS to this server, which does not speak it, asks for nothing
	if want := "/apis/coordination.k8s.io/v1/namespaces/tunnels/leases?tunnel=server application/vnd.kubernetes.protobuf"; !strings.HasPrefix(path, want) {
		t.Errorf("asked for %s, want %s", path, want)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// KON-044: an address is dialled as it is; a name that stands for this machine is not.
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
	if c, err := dialDestination(t.Context(), "tcp", "localhost:"+port); err == nil || !strings.Contains(err.Error(), "must not resolve to") {
		t.Errorf("%v, %v", c, err)
	}
}
