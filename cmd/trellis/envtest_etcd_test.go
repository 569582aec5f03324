package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestEtcdStub checks that the etcd stub is healthy, identifies itself, serves none of etcd's API, and ends cleanly on
// SIGTERM.
func TestEtcdStub(t *testing.T) {
	unused := httptest.NewServer(nil)
	url := unused.URL
	unused.Close() // its port is free now
	dir := filepath.Join(t.TempDir(), "data")
	assets := t.TempDir()
	if out, err := exec.Command("trellis", "envtest", assets).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := exec.Command(filepath.Join(assets, "etcd"), "--listen-client-urls="+url, "--advertise-client-urls="+url,
		"--listen-peer-urls=http://127.0.0.1:0",
		"--data-dir="+dir, "--unsafe-no-fsync=true")
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	deadline := time.After(scriptTimeout)
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		if response, err := http.Get(url + "/health"); err == nil {
			if body := readAll(t, response.Body); response.StatusCode != 200 || body != `{"health":"true","reason":""}`+
				"\n" {
				t.Errorf("/health: %d %s", response.StatusCode, body)
			}
			_ = response.Body.Close()
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the stub does not respond")
		}
	}
	if stub, ok := findStub(t.Context(), url); !ok || stub.DataDir != dir {
		t.Errorf("findStub: got %+v, %v, want the data directory %s", stub, ok, dir)
	}
	response, err := http.Post(url+"/v3/kv/range", "application/json", nil)
	if err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("etcd's API: %v, %v", response, err)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("exit of the stub: %v", err)
	}
}

// TestFindStubRejectsOthers checks that findStub returns false for servers other than the stub. If it returned true
// for a real etcd, kube-apiserver would ignore the data in etcd.
func TestFindStubRejectsOthers(t *testing.T) {
	for _, body := range []string{
		`{"etcdserver":"3.7.0","etcdcluster":"3.7.0","storage":"3.7.0"}`,
		`{"trellis":"v1","dataDir":"relative"}`,
		`{"dataDir":"/data"}`,
		`hello`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, body)
		}))
		if stub, ok := findStub(t.Context(), server.URL); ok {
			t.Errorf("%s: recognized as %+v", body, stub)
		}
		server.Close()
		if stub, ok := findStub(t.Context(), server.URL); ok {
			t.Errorf("no server listens: got %+v", stub)
		}
	}
}

// TestLinkOrCopy checks that a file is copied if it cannot be linked.
func TestLinkOrCopy(t *testing.T) {
	const elsewhere = "/proc/version" // on a file system to which hard links are not possible
	want, err := os.ReadFile(elsewhere)
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "copy")
	if err := linkOrCopy(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
		t.Errorf("the copy is not executable: %v, %v", info.Mode(), err)
	}
}
