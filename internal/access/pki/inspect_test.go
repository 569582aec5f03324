package pki

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRenewMatchesEnsure(t *testing.T) {
	for _, dir := range []string{t.TempDir(), ""} {
		first := ensure(t, dir, names, now)
		same, err := first.Renew(now.Add(leafLifetime - renewBefore - day))
		if err != nil || !same.Serving.Leaf.Equal(first.Serving.Leaf) || !bytes.Equal(same.AdminCert, first.AdminCert) {
			t.Errorf("directory %q: renewed too early (%v)", dir, err)
		}
		late := now.Add(leafLifetime - renewBefore + day)
		next, err := same.Renew(late)
		if err != nil {
			t.Fatal(err)
		}
		if next.Serving.Leaf.Equal(first.Serving.Leaf) || bytes.Equal(next.AdminCert, first.AdminCert) ||
			bytes.Equal(next.AdminKey, first.AdminKey) {
			t.Errorf("directory %q: not renewed", dir)
		}
		if !bytes.Equal(next.CAPEM, first.CAPEM) {
			t.Errorf("directory %q: the CA changed", dir)
		}
		if err := verify(next, names[0], x509.ExtKeyUsageServerAuth, late); err != nil {
			t.Error(err)
		}
	}
}

// TestRenewKeepsTheCA checks that a running server never changes to a CA that its clients do not trust.
func TestRenewKeepsTheCA(t *testing.T) {
	dir := t.TempDir()
	b := ensure(t, dir, names, now)
	if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Renew(now); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("missing CA: got error %v, want one that names ca.crt", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ca.crt")); err == nil {
		t.Error("a new CA was created")
	}
	ensure(t, dir, names, now)
	if _, err := b.Renew(now); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("different CA: got error %v, want one that names ca.crt", err)
	}
}

func TestMissingCAKeyIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, names, now)
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(dir, names, now); err == nil {
		t.Error("got no error")
	}
	if _, err := os.Stat(filepath.Join(dir, "ca.key")); err == nil {
		t.Error("a new key was written for the existing CA")
	}
}

func TestList(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, names, now)
	list, err := List(dir, now)
	if err != nil || len(list) != 6 {
		t.Fatalf("%v, %v", list, err)
	}
	issuers := []string{
		"CN=kubernetes", "CN=kubernetes", "CN=kubernetes", "CN=kubernetes", "CN=front-proxy-ca", "CN=front-proxy-ca",
	}
	for i, want := range []Certificate{
		{Name: "ca", Subject: "CN=kubernetes", Names: []string{"kubernetes"}, DaysLeft: 3650},
		{Name: "admin", Subject: "CN=kubernetes-admin,O=system:masters", DaysLeft: 365},
		{Name: "apiserver", Subject: "CN=kube-apiserver", Names: names, DaysLeft: 365},
		{Name: "apiserver-kubelet-client", Subject: "CN=kube-apiserver-kubelet-client", DaysLeft: 365},
		{Name: "front-proxy-ca", Subject: "CN=front-proxy-ca", Names: []string{"front-proxy-ca"}, DaysLeft: 3650},
		{Name: "front-proxy-client", Subject: "CN=front-proxy-client", DaysLeft: 365},
	} {
		c := list[i]
		// Certificates store whole seconds, so DaysLeft may be one less.
		if c.Name != want.Name || c.Subject != want.Subject || !slices.Equal(c.Names, want.Names) ||
			c.Issuer != issuers[i] ||
			c.DaysLeft < want.DaysLeft-1 || c.DaysLeft > want.DaysLeft || c.RenewedAtStart ||
			!c.NotBefore.Before(now) || !c.NotAfter.After(now) {
			t.Errorf("got %+v, want %+v", c, want)
		}
	}
	late, err := List(dir, now.Add(leafLifetime-renewBefore+day))
	if err != nil || late[0].RenewedAtStart || !late[1].RenewedAtStart || !late[2].RenewedAtStart {
		t.Errorf("shortly before the expiry: got %+v, %v", late, err)
	}
	if expired, err := List(dir, now.Add(2*caLifetime)); err != nil || expired[0].DaysLeft >= 0 {
		t.Errorf("after the expiry of the CA: got %+v, %v", expired, err)
	}
	for _, file := range []string{"admin.crt", "apiserver.key"} {
		if err := os.Remove(filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	incomplete, err := List(dir, now)
	if err != nil || incomplete[1].Subject != "" || !incomplete[1].RenewedAtStart || !incomplete[2].RenewedAtStart {
		t.Errorf("with files missing: got %+v, %v", incomplete, err)
	}
	if _, err := List(t.TempDir(), now); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("empty directory: got error %v, want one that names ca.crt", err)
	}
}

func TestReissue(t *testing.T) {
	dir := t.TempDir()
	first := ensure(t, dir, names, now)
	if err := Reissue(dir, []string{"admin"}, now); err != nil {
		t.Fatal(err)
	}
	second := ensure(t, dir, names, now)
	if bytes.Equal(second.AdminCert, first.AdminCert) || bytes.Equal(second.AdminKey, first.AdminKey) ||
		!second.Serving.Leaf.Equal(first.Serving.Leaf) {
		t.Error("want only the certificate admin to be renewed")
	}
	if err := Reissue(dir, nil, now); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "apiserver.crt"))
	if err != nil {
		t.Fatal(err)
	}
	third := ensure(t, dir, names, now)
	if third.Serving.Leaf.Equal(second.Serving.Leaf) || !bytes.Equal(third.CAPEM, first.CAPEM) ||
		!slices.Equal(describe("", data, now).Names, names) {
		t.Errorf("got renewed certificate %+v", describe("", data, now))
	}
	if err := os.Remove(filepath.Join(dir, "apiserver.crt")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, name, want string }{
		{dir, "ca", `"ca"`}, {dir, "apiserver", "apiserver.crt"}, {t.TempDir(), "admin", "ca.crt"},
	} {
		if err := Reissue(c.dir, []string{c.name}, now); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that contains %q", c.name, err, c.want)
		}
	}
}
