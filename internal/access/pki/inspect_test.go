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

func TestRenewIsAsAtAStart(t *testing.T) {
	for _, dir := range []string{t.TempDir(), ""} {
		first := ensure(t, dir, names, now)
		same, err := first.Renew(now.Add(lifetimeOfLeaf - renewBefore - day))
		if err != nil || !same.Serving.Leaf.Equal(first.Serving.Leaf) || !bytes.Equal(same.AdminCert, first.AdminCert) {
			t.Errorf("in %q: renewed too early (%v)", dir, err)
		}
		late := now.Add(lifetimeOfLeaf - renewBefore + day)
		next, err := same.Renew(late)
		if err != nil {
			t.Fatal(err)
		}
		if next.Serving.Leaf.Equal(first.Serving.Leaf) || bytes.Equal(next.AdminCert, first.AdminCert) || bytes.Equal(next.AdminKey, first.AdminKey) {
			t.Errorf("in %q: not renewed", dir)
		}
		if !bytes.Equal(next.CAPEM, first.CAPEM) {
			t.Errorf("in %q: the CA changed", dir)
		}
		if err := verify(next, names[0], x509.ExtKeyUsageServerAuth, late); err != nil {
			t.Error(err)
		}
	}
}

// A server never goes over to a CA that its clients do not know.
func TestRenewKeepsTheCA(t *testing.T) {
	dir := t.TempDir()
	b := ensure(t, dir, names, now)
	if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Renew(now); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("without its CA: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ca.crt")); err == nil {
		t.Error("another CA was made")
	}
	ensure(t, dir, names, now)
	if _, err := b.Renew(now); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("with another CA: %v", err)
	}
}

func TestLostKeyOfTheCAIsNotMadeAnew(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, names, now)
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(dir, names, now); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(filepath.Join(dir, "ca.key")); err == nil {
		t.Error("a key was written that is not the CA's")
	}
}

func TestList(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, names, now)
	list, err := List(dir, now)
	if err != nil || len(list) != 6 {
		t.Fatalf("%v, %v", list, err)
	}
	issuers := []string{"CN=kubernetes", "CN=kubernetes", "CN=kubernetes", "CN=kubernetes", "CN=front-proxy-ca", "CN=front-proxy-ca"}
	for i, want := range []Certificate{
		{Name: "ca", Subject: "CN=kubernetes", Names: []string{"kubernetes"}, DaysLeft: 3650},
		{Name: "admin", Subject: "CN=kubernetes-admin,O=system:masters", DaysLeft: 365},
		{Name: "apiserver", Subject: "CN=kube-apiserver", Names: names, DaysLeft: 365},
		{Name: "apiserver-kubelet-client", Subject: "CN=kube-apiserver-kubelet-client", DaysLeft: 365},
		{Name: "front-proxy-ca", Subject: "CN=front-proxy-ca", Names: []string{"front-proxy-ca"}, DaysLeft: 3650},
		{Name: "front-proxy-client", Subject: "CN=front-proxy-client", DaysLeft: 365},
	} {
		c := list[i]
		// Whole seconds are kept, so that it may be a day less.
		if c.Name != want.Name || c.Subject != want.Subject || !slices.Equal(c.Names, want.Names) || c.Issuer != issuers[i] ||
			c.DaysLeft < want.DaysLeft-1 || c.DaysLeft > want.DaysLeft || c.RenewedAtStart || !c.NotBefore.Before(now) || !c.NotAfter.After(now) {
			t.Errorf("%+v, want %+v", c, want)
		}
	}
	late, err := List(dir, now.Add(lifetimeOfLeaf-renewBefore+day))
	if err != nil || late[0].RenewedAtStart || !late[1].RenewedAtStart || !late[2].RenewedAtStart {
		t.Errorf("before their end: %+v, %v", late, err)
	}
	if ended, err := List(dir, now.Add(2*lifetimeOfCA)); err != nil || ended[0].DaysLeft >= 0 {
		t.Errorf("after the end of the CA: %+v, %v", ended, err)
	}
	for _, lost := range []string{"admin.crt", "apiserver.key"} {
		if err := os.Remove(filepath.Join(dir, lost)); err != nil {
			t.Fatal(err)
		}
	}
	some, err := List(dir, now)
	if err != nil || some[1].Subject != "" || !some[1].RenewedAtStart || !some[2].RenewedAtStart {
		t.Errorf("with files missing: %+v, %v", some, err)
	}
	if _, err := List(t.TempDir(), now); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("of an empty folder: %v", err)
	}
}

func TestReissue(t *testing.T) {
	dir := t.TempDir()
	first := ensure(t, dir, names, now)
	if err := Reissue(dir, []string{"admin"}, now); err != nil {
		t.Fatal(err)
	}
	second := ensure(t, dir, names, now)
	if bytes.Equal(second.AdminCert, first.AdminCert) || bytes.Equal(second.AdminKey, first.AdminKey) || !second.Serving.Leaf.Equal(first.Serving.Leaf) {
		t.Error("not admin alone was renewed")
	}
	if err := Reissue(dir, nil, now); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "apiserver.crt"))
	if err != nil {
		t.Fatal(err)
	}
	third := ensure(t, dir, names, now)
	if third.Serving.Leaf.Equal(second.Serving.Leaf) || !bytes.Equal(third.CAPEM, first.CAPEM) || !slices.Equal(describe("", data, now).Names, names) {
		t.Errorf("renewed as %+v", describe("", data, now))
	}
	if err := os.Remove(filepath.Join(dir, "apiserver.crt")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, name, want string }{
		{dir, "ca", `"ca"`}, {dir, "apiserver", "apiserver.crt"}, {t.TempDir(), "admin", "ca.crt"},
	} {
		if err := Reissue(c.dir, []string{c.name}, now); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
