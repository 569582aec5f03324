package pki

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

var (
	now   = time.Now()
	names = []string{"kubernetes.default.svc", "localhost", "127.0.0.1", "10.0.0.1"}
)

func ensure(t *testing.T, dir string, hosts []string, at time.Time) *Bundle {
	t.Helper()
	b, err := Ensure(dir, hosts, at)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func verify(b *Bundle, host string, usage x509.ExtKeyUsage, at time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(b.CAPEM)
	_, err := b.Serving.Leaf.Verify(x509.VerifyOptions{
		DNSName: host, Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	return err
}

func TestFirstStartCreatesAndLaterStartsReuse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first := ensure(t, dir, names, now)
	for _, n := range names {
		if err := verify(first, n, x509.ExtKeyUsageServerAuth, now); err != nil {
			t.Errorf("%s: %v", n, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v (%v), want 0600", e.Name(), info.Mode(), err)
		}
	}
	if len(entries) != 13 {
		t.Errorf("got %d files, want 13: %v", len(entries), entries)
	}
	second := ensure(t, dir, names, now.Add(time.Hour))
	if !bytes.Equal(first.CAPEM, second.CAPEM) || !bytes.Equal(first.AdminCert, second.AdminCert) ||
		!bytes.Equal(first.AdminKey, second.AdminKey) || !first.Serving.Leaf.Equal(second.Serving.Leaf) {
		t.Error("a later start replaced a file")
	}
}

func TestServingCertificateIsRenewed(t *testing.T) {
	dir := t.TempDir()
	first := ensure(t, dir, names, now)
	more := append([]string{"192.0.2.7"}, names...)
	second := ensure(t, dir, more, now)
	if first.Serving.Leaf.Equal(second.Serving.Leaf) ||
		verify(second, "192.0.2.7", x509.ExtKeyUsageServerAuth, now) != nil {
		t.Error("the serving certificate was not renewed for a new host")
	}
	late := now.Add(leafLifetime - renewBefore + time.Hour)
	third := ensure(t, dir, more, late)
	if third.Serving.Leaf.Equal(second.Serving.Leaf) || bytes.Equal(third.AdminCert, second.AdminCert) {
		t.Error("certificates that expire soon were not renewed")
	}
	if !bytes.Equal(first.CAPEM, third.CAPEM) {
		t.Error("the CA changed")
	}
}

func TestDamagedFiles(t *testing.T) {
	for name, content := range map[string]string{"ca.key": "", "ca.crt": "rubbish", "sa.key": "rubbish",
		"apiserver.key": "rubbish"} {
		dir := t.TempDir()
		ensure(t, dir, names, now)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Ensure(dir, names, now); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s damaged: error %v does not name it", name, err)
		}
	}
	dir := t.TempDir()
	ensure(t, dir, names, now)
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(dir, names, now); err == nil || !strings.Contains(err.Error(), "ca.key") {
		t.Errorf("CA key missing: got error %v, want one that names ca.key", err)
	}
	if _, err := Ensure(t.TempDir(), names, now); err != nil {
		t.Errorf("empty directory: got error %v, want none", err)
	}
	expired := t.TempDir()
	ensure(t, expired, names, now)
	if _, err := Ensure(expired, names, now.Add(2*caLifetime)); err == nil ||
		!strings.Contains(err.Error(), "expired") {
		t.Errorf("expired CA: got error %v", err)
	}
}

func TestKubeconfig(t *testing.T) {
	b := ensure(t, "", names, now)
	config, err := clientcmd.RESTConfigFromKubeConfig(b.Kubeconfig("https://127.0.0.1:6443", ""))
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:6443" || !bytes.Equal(config.CAData, b.CAPEM) ||
		!bytes.Equal(config.CertData, b.AdminCert) || !bytes.Equal(config.KeyData, b.AdminKey) {
		t.Errorf("got config %+v", config)
	}
}

func TestWriteFileIsAtomic(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"one", "two"} {
		if err := WriteFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
	if err := WriteFile(filepath.Join(t.TempDir(), "missing", "f"), nil); err == nil {
		t.Error("got no error for a missing directory")
	}
}
