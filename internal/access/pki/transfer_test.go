package pki

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// export returns the archive of the keys in dir.
func export(t *testing.T, dir string) []byte {
	t.Helper()
	var archive bytes.Buffer
	if err := Export(dir, &archive, now); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// TestImport checks that a server with imported keys has the same CAs and service account key, but certificates of its
// own. A second import of the same archive changes nothing.
func TestImport(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new", "pki")
	a := ensure(t, from, names, now)
	archive := export(t, from)
	for range 2 {
		if err := Import(to, bytes.NewReader(archive), now); err != nil {
			t.Fatal(err)
		}
	}
	b := ensure(t, to, names, now)
	if !bytes.Equal(a.CAPEM, b.CAPEM) || !bytes.Equal(a.ProxyCAPEM, b.ProxyCAPEM) ||
		!reflect.DeepEqual(a.AccountKey, b.AccountKey) || bytes.Equal(a.AdminKey, b.AdminKey) {
		t.Error("the imported keys differ, or the certificates are the same")
	}
	if !bytes.Equal(export(t, to), archive) {
		t.Error("the archive of the imported keys differs")
	}
	if info, err := os.Stat(filepath.Join(to, "ca.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestImportRefused checks that an import of a damaged archive, or over other keys, fails and changes nothing.
func TestImportRefused(t *testing.T) {
	from, other, to := t.TempDir(), t.TempDir(), t.TempDir()
	ensure(t, from, names, now)
	ensure(t, other, names, now)
	archive := export(t, from)
	if err := Export(to, &bytes.Buffer{}, now); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("an export without keys: %v", err)
	}
	before := export(t, other)
	if err := Import(other, bytes.NewReader(archive), now); err == nil ||
		!strings.Contains(err.Error(), "exists and differs") {
		t.Errorf("an import over other keys: %v", err)
	}
	if !bytes.Equal(export(t, other), before) {
		t.Error("the refused import has changed the keys")
	}
	mixed := t.TempDir() // the key of another CA
	ensure(t, mixed, names, now)
	foreign, err := os.ReadFile(filepath.Join(other, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mixed, "ca.key"), foreign, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty": nil, "not an archive": []byte("rubbish"), "cut": archive[:len(archive)/2],
		"another name": bytes.ReplaceAll(archive, []byte("front-proxy-ca"), []byte("../../front-ca")),
		"mixed":        export(t, mixed), "large": make([]byte, 2*maxArchive),
	} {
		if err := Import(to, bytes.NewReader(data), now); err == nil {
			t.Errorf("%s: the import succeeded", name)
		}
	}
	if entries, err := os.ReadDir(to); err != nil || len(entries) > 0 {
		t.Errorf("a refused import has written %v, %v", entries, err)
	}
}
