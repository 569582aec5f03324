package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority is a certificate authority.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	c := a.issue("ca")
	a.cert, a.key = c.Leaf, c.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// issue returns a certificate for 127.0.0.1, valid for servers and clients. The first call returns the certificate
// of the authority itself.
func (a *authority) issue(name string) *tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IsCA: a.cert == nil,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// write writes a certificate to certFile and its key to keyFile. If keyFile is "", it writes no key.
func (a *authority) write(c *tls.Certificate, certFile, keyFile string) {
	a.t.Helper()
	err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Leaf.Raw}), 0o600)
	if keyFile != "" {
		key, keyErr := x509.MarshalECPrivateKey(c.PrivateKey.(*ecdsa.PrivateKey))
		err = errors.Join(err, keyErr, os.WriteFile(keyFile,
			pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}), 0o600))
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// files returns the TLS files of a server, whose clients have certificates of the same authority.
func (a *authority) files() TLS {
	dir := a.t.TempDir()
	f := TLS{CertFile: filepath.Join(dir, "s.crt"), KeyFile: filepath.Join(dir, "s.key"),
		ClientCAFile: filepath.Join(dir, "ca.crt"), MinVersion: tls.VersionTLS12}
	a.write(a.issue("server"), f.CertFile, f.KeyFile)
	a.write(&tls.Certificate{Leaf: a.cert}, f.ClientCAFile, "")
	return f
}

// serveGreeting sends a greeting on each connection and closes it.
func serveGreeting(t *testing.T, l net.Listener) {
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.WriteString(c, "hello")
				_ = c.Close()
			}()
		}
	}()
}

// connect connects with a client certificate and returns the server's certificate. It fails if it does not
// receive the greeting.
func (a *authority) connect(address string, with *tls.Certificate) (*x509.Certificate, error) {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	config := &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}}
	if with != nil {
		config.Certificates = []tls.Certificate{*with}
	}
	c, err := tls.Dial("tcp", address, config)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if data, err := io.ReadAll(c); err != nil || string(data) != "hello" {
		return nil, errors.Join(err, errors.New("no greeting: "+string(data)))
	}
	return c.ConnectionState().PeerCertificates[0], nil
}

// TestClientCertificates checks that clients need a certificate of --server-ca-cert or --cluster-ca-cert, and
// that agents receive --cluster-cert (KON-034, KON-022).
func TestClientCertificates(t *testing.T) {
	ca, otherCA := newAuthority(t), newAuthority(t)
	files := ca.files()
	l, err := listenTLS(t.Context(), "server-port", "127.0.0.1:0", "server", files, "h2")
	if err != nil {
		t.Fatal(err)
	}
	serveGreeting(t, l)
	if _, err := ca.connect(l.Addr().String(), ca.issue("frontend")); err != nil {
		t.Errorf("with a certificate: got error %v", err)
	}
	if _, err := ca.connect(l.Addr().String(), nil); err == nil {
		t.Error("connected without a certificate")
	}
	if _, err := ca.connect(l.Addr().String(), otherCA.issue("frontend")); err == nil {
		t.Error("connected with a certificate of another CA")
	}
	files.ClientCAFile = ""
	open, err := listenTLS(t.Context(), "agent-port", "127.0.0.1:0", "cluster", files, "h2")
	if err != nil {
		t.Fatal(err)
	}
	serveGreeting(t, open)
	if received, err := ca.connect(open.Addr().String(), nil); err != nil || received.Subject.CommonName != "server" {
		t.Errorf("without a client CA: got error %v", err)
	}
}

// TestCertificatesAreReloaded checks that changed certificate and CA files are reloaded (KON-022, KON-034).
func TestCertificatesAreReloaded(t *testing.T) {
	ca, otherCA := newAuthority(t), newAuthority(t)
	files := ca.files()
	l, err := listenTLS(t.Context(), "server-port", "127.0.0.1:0", "server", files, "h2")
	if err != nil {
		t.Fatal(err)
	}
	serveGreeting(t, l)
	ca.write(ca.issue("next"), files.CertFile, files.KeyFile)
	waitFor(t, "the new certificate is used", func() bool {
		received, err := ca.connect(l.Addr().String(), ca.issue("frontend"))
		return err == nil && received.Subject.CommonName == "next"
	})
	ca.write(&tls.Certificate{Leaf: otherCA.cert}, files.ClientCAFile, "")
	waitFor(t, "the new CA is used", func() bool {
		_, err := ca.connect(l.Addr().String(), otherCA.issue("frontend"))
		return err == nil
	})
	if _, err := ca.connect(l.Addr().String(), ca.issue("frontend")); err == nil {
		t.Error("connected with a certificate of the old CA")
	}
}

// TestBadCertificates checks that the error for an invalid file names its flag (KON-033).
func TestBadCertificates(t *testing.T) {
	ca := newAuthority(t)
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, spoil := range map[string]func(*TLS){
		"--cluster-cert":    func(f *TLS) { f.CertFile = bad },
		"--cluster-key":     func(f *TLS) { f.KeyFile = bad },
		"--cluster-ca-cert": func(f *TLS) { f.ClientCAFile = bad },
	} {
		files := ca.files()
		spoil(&files)
		if _, err := files.config(t.Context(), "cluster", "h2"); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: got error %v", flag, err)
		}
	}
}

// TestVersionsAndCipherSuites checks that the minimum TLS version and --cipher-suites apply to both ports
// (KON-034).
func TestVersionsAndCipherSuites(t *testing.T) {
	const allowed, other = tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
	ca := newAuthority(t)
	handshake := func(minVersion uint16, version, suite uint16) (agents, frontends error) {
		t.Helper()
		c := testConfig(t)
		c.Socket, c.FrontendAddress = "", "127.0.0.1:0"
		c.AgentTLS, c.FrontendTLS = ca.files(), ca.files()
		for _, files := range []*TLS{&c.AgentTLS, &c.FrontendTLS} {
			files.MinVersion, files.CipherSuites = minVersion, []uint16{allowed}
		}
		r, err := start(c)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		go func() { _ = r.server.ServeAgents(r.agents) }()
		go func() { _ = r.server.ServeFrontends(r.frontends, r.Mode) }()
		roots := x509.NewCertPool()
		roots.AddCert(ca.cert)
		config := &tls.Config{RootCAs: roots, NextProtos: []string{"h2"},
			Certificates: []tls.Certificate{*ca.issue("client")}, MaxVersion: version, CipherSuites: []uint16{suite}}
		try := func(address string) error {
			conn, err := tls.Dial("tcp", address, config)
			if err == nil {
				_ = conn.Close()
			}
			return err
		}
		return try(r.agents.Addr().String()), try(r.frontends.Addr().String())
	}
	for _, c := range []struct {
		minVersion, version, suite uint16
		want                       string // "" means that the handshake succeeds
	}{
		{tls.VersionTLS12, tls.VersionTLS12, allowed, ""},
		{tls.VersionTLS12, tls.VersionTLS12, other, "handshake failure"},
		{tls.VersionTLS13, tls.VersionTLS12, allowed, "protocol version"},
		{tls.VersionTLS13, tls.VersionTLS13, other, ""}, // TLS 1.3 has separate cipher suites
	} {
		agents, frontends := handshake(c.minVersion, c.version, c.suite)
		for port, err := range map[string]error{"agents": agents, "API servers": frontends} {
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: version %x, suite %x, minimum version %x: got error %v, want %q", port, c.version,
					c.suite, c.minVersion, err, c.want)
			}
		}
	}
}
