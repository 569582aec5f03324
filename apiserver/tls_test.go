package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/serving"
)

const day = 24 * time.Hour

// certificate creates the files of a certificate for names.
func certificate(t *testing.T, names ...string) (dir, cert, key string) {
	t.Helper()
	dir = t.TempDir()
	if _, err := pki.Ensure(dir, names, time.Now()); err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
}

// shown returns the certificate that the server presents on a new connection. The client sends name as the TLS server
// name (SNI).
func shown(t *testing.T, address, name string) *x509.Certificate {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, ServerName: name})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

// certificateIn returns the certificate in a file.
func certificateIn(t *testing.T, cert, key string) *x509.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf
}

// TestCertificateFilesAreReloaded checks that changed certificate files take effect, and that the last valid
// certificate remains in use while a file is damaged.
func TestCertificateFilesAreReloaded(t *testing.T) {
	dir, cert, key := certificate(t, "main.example.com")
	sniDir, sniCert, sniKey := certificate(t, "other.example.com")
	s := start(t, apiserver.Config{TLS: serving.TLS{
		CertFile: cert, KeyFile: key,
		SNI: []cliflag.NamedCertKey{{CertFile: sniCert, KeyFile: sniKey}},
	}})
	old := client(t, s)
	resp, err := old.Get(s.URL() + "/readyz")
	body(t, resp, err, http.StatusOK)
	for _, of := range []struct{ dir, cert, key, name string }{{dir, cert, key, ""},
		{sniDir, sniCert, sniKey, "other.example.com"}} {
		if !shown(t, s.Address(), of.name).Equal(certificateIn(t, of.cert, of.key)) {
			t.Errorf("%q: the first file is not served", of.name)
		}
		if err := pki.Reissue(of.dir, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
		next := certificateIn(t, of.cert, of.key)
		within(t, func() bool { return shown(t, s.Address(), of.name).Equal(next) })
		if err := os.WriteFile(of.cert, []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
		if !shown(t, s.Address(), of.name).Equal(next) {
			t.Errorf("%q: the last valid certificate is not served", of.name)
		}
	}
	resp, err = old.Get(s.URL() + "/readyz") // reuses the connection, or selects the server's own certificate
	body(t, resp, err, http.StatusOK)
}

// TestSNIMatchesUpstream checks that the server selects the same certificate for a client as the certificate
// controller of kube-apiserver.
func TestSNIMatchesUpstream(t *testing.T) {
	_, mainCert, mainKey := certificate(t, "main.example.com")
	_, cert0, key0 := certificate(t, "fourth.example.com")
	_, cert1, key1 := certificate(t, "*.wild.example.com", "both.example.com")
	_, cert2, key2 := certificate(t, "both.example.com", "second.example.com", "fourth.example.com")
	_, cert3, key3 := certificate(t, "third.example.com")
	for _, typed := range [][]string{{"second.example.com", "*.typed.example.com", "*"}, {"127.0.0.1"}} {
		c := serving.TLS{CertFile: mainCert, KeyFile: mainKey, SNI: []cliflag.NamedCertKey{
			// not by the names in the certificate
			{CertFile: cert0, KeyFile: key0, Names: []string{"zero.example.com"}},
			{CertFile: cert1, KeyFile: key1}, {CertFile: cert2, KeyFile: key2}, {CertFile: cert3, KeyFile: key3,
				Names: typed},
		}}
		s := start(t, apiserver.Config{TLS: c})
		reference := upstream(t, c)
		seen := map[string]bool{}
		for _, name := range []string{
			"", "main.example.com", "both.example.com", "BOTH.example.com", "second.example.com", "third.example.com",
			"fourth.example.com", "zero.example.com",
			"x.wild.example.com", "wild.example.com", "x.y.wild.example.com", "X.Typed.example.com",
			"typed.example.com",
			"single", "unknown.example.org", "localhost", "kube-apiserver",
		} {
			got, want := shown(t, s.Address(), name), shown(t, reference, name)
			if !got.Equal(want) {
				t.Errorf("names %v: SNI %q: got %v, upstream has %v", typed, name, got.DNSNames, want.DNSNames)
			}
			seen[got.DNSNames[0]] = true
		}
		if len(seen) != 5 {
			t.Errorf("names %v: got certificates %v, want five", typed, seen)
		}
		resp, err := client(t, s).Get(s.URL() + "/readyz")
		body(t, resp, err, http.StatusOK) // the administrator's client trusts only the server's own certificate
	}
}

// upstream starts a TLS server that uses upstream's certificate controller, and returns its address.
func upstream(t *testing.T, c serving.TLS) string {
	t.Helper()
	serving, err := dynamiccertificates.NewDynamicServingContentFromFiles("test", c.CertFile, c.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	var sni []dynamiccertificates.SNICertKeyContentProvider
	for _, s := range c.SNI {
		file, err := dynamiccertificates.NewDynamicSNIContentFromFiles("test", s.CertFile, s.KeyFile, s.Names...)
		if err != nil {
			t.Fatal(err)
		}
		sni = append(sni, file)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	controller := dynamiccertificates.NewDynamicServingCertificateController(config, nil, serving, sni, nil)
	if err := controller.RunOnce(); err != nil {
		t.Fatal(err)
	}
	config.GetConfigForClient = controller.GetConfigForClient
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// TestVersionsAndCipherSuites checks the flags of TLS versions and cipher suites.
func TestVersionsAndCipherSuites(t *testing.T) {
	const suite, other = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	for _, c := range []struct {
		server  serving.TLS
		client  *tls.Config
		refused string
	}{
		{serving.TLS{}, &tls.Config{MaxVersion: tls.VersionTLS12}, ""},
		{serving.TLS{}, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
			"protocol version not supported"},
		{serving.TLS{MinVersion: "VersionTLS13"}, &tls.Config{}, ""},
		{serving.TLS{MinVersion: "VersionTLS13"}, &tls.Config{MaxVersion: tls.VersionTLS12},
			"protocol version not supported"},
		{serving.TLS{CipherSuites: []string{tls.CipherSuiteName(suite)}}, &tls.Config{MaxVersion: tls.VersionTLS12,
			CipherSuites: []uint16{suite}}, ""},
		{serving.TLS{CipherSuites: []string{tls.CipherSuiteName(suite)}}, &tls.Config{MaxVersion: tls.VersionTLS12,
			CipherSuites: []uint16{other}}, "handshake failure"},
	} {
		s := start(t, apiserver.Config{TLS: c.server})
		c.client.InsecureSkipVerify = true
		conn, err := tls.Dial("tcp", s.Address(), c.client)
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("server %+v, client %x to %x: %v, want %q", c.server, c.client.MinVersion, c.client.MaxVersion,
				err, c.refused)
		}
	}
}

// TestInvalidTLSFiles checks that the start fails if TLS flags are invalid, before the server creates the data
// directory.
func TestInvalidTLSFiles(t *testing.T) {
	_, cert, key := certificate(t, "one.example.com")
	_, _, foreignKey := certificate(t, "two.example.com")
	for flag, c := range map[string]serving.TLS{
		"--tls-cert-file":        {CertFile: cert, KeyFile: foreignKey},
		"--tls-private-key-file": {CertFile: cert},
		"--tls-sni-cert-key": {SNI: []cliflag.NamedCertKey{{CertFile: cert, KeyFile: key},
			{CertFile: cert, KeyFile: "missing"}}},
		"--tls-cipher-suites": {CipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		s, err := apiserver.Start(context.Background(), apiserver.Config{DataDir: dir, TLS: c})
		if err == nil {
			_ = s.Shutdown()
		}
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: error %v", flag, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: the data directory was created", flag)
		}
	}
}

// TestOwnCertificatesAreRenewed checks that a server that has been running for 300 days renews its certificates.
func TestOwnCertificatesAreRenewed(t *testing.T) {
	for name, dir := range map[string]string{"on disk": t.TempDir(), "in memory": ""} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Now().Add(-300 * day))
			s := start(t, apiserver.Config{DataDir: dir, Clock: clock})
			before, kubeconfig, c := shown(t, s.Address(), ""), s.Kubeconfig(), client(t, s)
			if dir != "" {
				if err := pki.Reissue(filepath.Join(dir, "pki"), []string{"apiserver"}, clock.Now()); err != nil {
					t.Fatal(err)
				}
				clock.Step(time.Hour) // files written by trellis certs renew are loaded as well
				reissued := certificateIn(t, dir+"/pki/apiserver.crt", dir+"/pki/apiserver.key")
				within(t, func() bool { return shown(t, s.Address(), "").Equal(reissued) })
				before = reissued
			}
			clock.SetTime(time.Now())
			within(t, func() bool { return !shown(t, s.Address(), "").Equal(before) })
			after := shown(t, s.Address(), "")
			if after.NotAfter.Before(time.Now().Add(364*day)) || len(after.DNSNames) != len(before.DNSNames) {
				t.Errorf("renewed until %v for %v", after.NotAfter, after.DNSNames)
			}
			within(t, func() bool { return dir == "" || read(t, dir+"/admin.kubeconfig") == string(s.Kubeconfig()) })
			if bytes.Equal(s.Kubeconfig(), kubeconfig) {
				t.Error("the kubeconfig is not written again")
			}
			config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig())
			if err != nil {
				t.Fatal(err)
			}
			next, err := rest.HTTPClientFor(config)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []*http.Client{c, next} { // the old certificate has not expired yet
				resp, err := c.Get(s.URL() + "/api/v1/namespaces/default")
				body(t, resp, err, http.StatusOK)
			}
		})
	}
}
