package apiserver_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/authn"
	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// keysFixture is an etcd cluster and the data directories of the servers that use it.
type keysFixture struct {
	*testing.T
	etcd *storagetest.Etcd
}

// newKeys returns a data directory with keys of its own.
func (f keysFixture) newKeys() (dir string) {
	dir = f.TempDir()
	if _, err := pki.Ensure(filepath.Join(dir, "pki"), nil, time.Now()); err != nil {
		f.Fatal(err)
	}
	return dir
}

// copyOf returns a data directory with the keys of another one.
func (f keysFixture) copyOf(dir string) string {
	var archive bytes.Buffer
	if err := pki.Export(filepath.Join(dir, "pki"), &archive, time.Now()); err != nil {
		f.Fatal(err)
	}
	to := f.TempDir()
	if err := pki.Import(filepath.Join(to, "pki"), &archive, time.Now()); err != nil {
		f.Fatal(err)
	}
	return to
}

func (f keysFixture) read(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, "pki", name))
	if err != nil {
		f.Fatal(err)
	}
	return string(data)
}

func (f keysFixture) write(dir, name, data string) {
	if err := pki.WriteFile(filepath.Join(dir, "pki", name), []byte(data)); err != nil {
		f.Fatal(err)
	}
}

// start starts and stops a server with the keys in dir. It returns the error of the start.
func (f keysFixture) start(dir string, accounts authn.Accounts) error {
	s, err := apiserver.Start(f.Context(), apiserver.Config{
		DataDir: dir, Etcd: etcd.Cluster{Servers: []string{f.etcd.URL}}, Controllers: []string{"-*"},
		Authentication: authn.Config{Accounts: accounts},
	})
	if err != nil {
		return err
	}
	return s.Shutdown()
}

func (f keysFixture) wantRefused(err error, file string) {
	f.Helper()
	if err == nil || !strings.Contains(err.Error(), file+" is not the file of the other servers") {
		f.Errorf("want an error about %s, got %v", file, err)
	}
}

// TestEtcdIdentity checks that a server with another CA or service account key than the other servers on etcd does not
// start, and that the error names the file. A server with imported keys starts.
func TestEtcdIdentity(t *testing.T) {
	f := keysFixture{t, storagetest.StartEtcd(t)}
	first := f.newKeys()
	for _, dir := range []string{first, f.copyOf(first)} {
		if err := f.start(dir, authn.Accounts{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"ca", "front-proxy-ca", "sa"} {
		dir, other := f.copyOf(first), f.newKeys()
		file := name + ".key"
		f.write(dir, file, f.read(other, file))
		if name != "sa" {
			file = name + ".crt"
			f.write(dir, file, f.read(other, file))
		}
		f.wantRefused(f.start(dir, authn.Accounts{}), filepath.Join(dir, "pki", file))
	}
	key := filepath.Join(f.newKeys(), "pki", "sa.key")
	f.wantRefused(f.start(first, authn.Accounts{SigningKeyFile: key}), key)
	raw, err := etcd.Open(t.Context(), etcd.Options{Cluster: etcd.Cluster{Servers: []string{f.etcd.URL}, Prefix: "/"}})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	for r := range raw.Head().Walk("", "") {
		if strings.Contains(string(r.Value), "PRIVATE KEY") {
			t.Errorf("%s contains a private key", r.Key)
		}
	}
}

// TestEtcdIdentityRotation checks that the keys of two servers can be replaced, one server at a time, if each step
// trusts the new key before another server signs with it. A server that skips a step does not start.
func TestEtcdIdentityRotation(t *testing.T) {
	f := keysFixture{t, storagetest.StartEtcd(t)}
	a, next := f.newKeys(), f.newKeys()
	b := f.copyOf(a)
	oldCA, newCA := f.read(a, "ca.crt"), f.read(next, "ca.crt")
	oldKey, newKey := filepath.Join(a, "pki", "sa.key"), filepath.Join(next, "pki", "sa.key")
	use := func(dir, certs string) error {
		f.write(dir, "ca.crt", certs)
		if strings.HasPrefix(certs, newCA) {
			f.write(dir, "ca.key", f.read(next, "ca.key"))
		}
		return f.start(dir, authn.Accounts{})
	}
	both := []string{oldKey, newKey}
	for i, step := range []func(dir string) error{
		func(dir string) error { return use(dir, oldCA) },
		func(dir string) error { return use(dir, oldCA+newCA) },
		func(dir string) error { return use(dir, newCA+oldCA) },
		func(dir string) error { return use(dir, newCA) },
		func(dir string) error { return f.start(dir, authn.Accounts{KeyFiles: both}) },
		func(dir string) error { return f.start(dir, authn.Accounts{KeyFiles: both, SigningKeyFile: newKey}) },
		func(dir string) error { return f.start(dir, authn.Accounts{SigningKeyFile: newKey}) },
	} {
		for _, dir := range []string{a, b, a} { // a restarts while b has the older or the newer keys
			if err := step(dir); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
	}
	f.wantRefused(f.start(a, authn.Accounts{SigningKeyFile: oldKey}), oldKey)
	skipped := f.copyOf(a)
	last := f.newKeys()
	f.write(skipped, "ca.crt", f.read(last, "ca.crt")+newCA)
	f.write(skipped, "ca.key", f.read(last, "ca.key"))
	f.wantRefused(f.start(skipped, authn.Accounts{SigningKeyFile: newKey}), filepath.Join(skipped, "pki", "ca.crt"))
}
