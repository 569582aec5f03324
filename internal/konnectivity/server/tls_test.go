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

// authority is a CA for a test.
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

// issue signs a certificate for 127.0.0.1, servers and clients; the first is its own.
func (a *authority) issue(name string) *tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IsCA: a.cert == nil, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
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

// write puts a certificate, and the key if there is one, into files.
func (a *authority) write(c *tls.Certificate, certFile, keyFile string) {
	a.t.Helper()
	err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Leaf.Raw}), 0o600)
	if keyFile != "" {
		key, keyErr := x509.MarshalECPrivateKey(c.PrivateKey.(*ecdsa.PrivateKey))
		err = errors.Join(err, keyErr, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}), 0o600))
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// files are those of a server whose clients have certificates of the same CA.
func (a *authority) files() TLS {
	dir := a.t.TempDir()
	f := TLS{CertFile: filepath.Join(dir, "s.crt"), KeyFile: filepath.Join(dir, "s.key"), ClientCAFile: filepath.Join(dir, "ca.crt"), MinVersion: tls.VersionTLS12}
	a.write(a.issue("server"), f.CertFile, f.KeyFile)
	a.write(&tls.Certificate{Leaf: a.cert}, f.ClientCAFile, "")
	return f
}

// greets serves one greeting for each connection.
func greets(t *testing.T, l net.Listener) {
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

// call is what a client sees: the server's certificate, and the error if it is not greeted.
func (a *authority) call(address string, with *tls.Certificate) (*x509.Certificate, error) {
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
		return nil, errors.Join(err, errors.New("not greeted: "+string(data)))
	}
	return c.ConnectionState().PeerCertificates[0], nil
}

// KON-034: with --server-ca-cert (and with --cluster-ca-cert) a client needs a certificate of that CA. KON-022: agents see
// --cluster-cert.
func TestClientCertificates(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	files := ours.files()
	l, err := listenTLS(t.Context(), "server-port", "127.0.0.1:0", "server", files, "h2")
	if err != nil {
		t.Fatal(err)
	}
	greets(t, l)
	if _, err := ours.call(l.Addr().String(), ours.issue("front")); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if _, err := ours.call(l.Addr().String(), nil); err == nil {
		t.Error("greeted without a certificate")
	}
	if _, err := ours.call(l.Addr().String(), others.issue("front")); err == nil {
		t.Error("greeted with a certificate of another CA")
	}
	files.ClientCAFile = ""
	open, err := listenTLS(t.Context(), "agent-port", "127.0.0.1:0", "cluster", files, "h2")
	if err != nil {
		t.Fatal(err)
	}
	greets(t, open)
	if seen, err := ours.call(open.Addr().String(), nil); err != nil || seen.Subject.CommonName != "server" {
		t.Errorf("no CA, and no certificate is needed: %v", err)
	}
}

// KON-022, KON-034: certificates and CAs are read again when their files change.
func TestCertificatesAreFollowed(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	files := ours.files()
	l, err := listenTLS(t.Context(), "server-port", "127.0.0.1:0", "server", files, "h2")
	if err != nil {
		t.Fatal(err)
	}
	greets(t, l)
	ours.write(ours.issue("next"), files.CertFile, files.KeyFile)
	eventually(t, "the new certificate", func() bool {
		seen, err := ours.call(l.Addr().String(), ours.issue("front"))
		return err == nil && seen.Subject.CommonName == "next"
	})
	ours.write(&tls.Certificate{Leaf: others.cert}, files.ClientCAFile, "")
	eventually(t, "the new CA", func() bool {
		_, err := ours.call(l.Addr().String(), others.issue("front"))
		return err == nil
	})
	if _, err := ours.call(l.Addr().String(), ours.issue("front")); err == nil {
		t.Error("greeted with a certificate of the CA before")
	}
}

// KON-033: files that are no certificates are errors that name the flag.
func TestBadCertificates(t *testing.T) {
	ours := newAuthority(t)
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, spoil := range map[string]func(*TLS){
		"--cluster-cert":    func(f *TLS) { f.CertFile = bad },
		"--cluster-key":     func(f *TLS) { f.KeyFile = bad },
		"--cluster-ca-cert": func(f *TLS) { f.ClientCAFile = bad },
	} {
		files := ours.files()
		spoil(&files)
		if _, err := files.config(t.Context(), "cluster", "h2"); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// KON-034: the least version and --cipher-suites hold at both ports: who has less is refused.
func TestVersionsAndCipherSuites(t *testing.T) {
	const ours, other = tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
	ca := newAuthority(t)
	shake := func(least uint16, version, suite uint16) (agents, fronts error) {
		t.Helper()
		c := configured(t)
		c.Socket, c.FrontendAddress = "", "127.0.0.1:0"
		c.AgentTLS, c.FrontendTLS = ca.files(), ca.files()
		for _, files := range []*TLS{&c.AgentTLS, &c.FrontendTLS} {
			files.MinVersion, files.CipherSuites = least, []uint16{ours}
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
		config := &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{*ca.issue("client")}, MaxVersion: version, CipherSuites: []uint16{suite}}
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
		least, version, suite uint16
		want                  string // "": it is agreed
	}{
		{tls.VersionTLS12, tls.VersionTLS12, ours, ""},
		{tls.VersionTLS12, tls.VersionTLS12, other, "handshake failure"},
		{tls.VersionTLS13, tls.VersionTLS12, ours, "protocol version"},
		{tls.VersionTLS13, tls.VersionTLS13, other, ""}, // which has suites of its own
	} {
		agents, fronts := shake(c.least, c.version, c.suite)
		for port, err := range map[string]error{"agents": agents, "API servers": fronts} {
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %x with %x where %x is the least: %v, want %q", port, c.version, c.suite, c.least, err, c.want)
			}
		}
	}
}
