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

// etcd's stand-in is healthy, says who it is, has none of etcd's API, and ends cleanly when it is told to.
func TestStandIn(t *testing.T) {
	taken := httptest.NewServer(nil)
	url := taken.URL
	taken.Close() // its port is free now
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
	deadline := time.After(patience)
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
			t.Fatal("it does not answer")
		}
	}
	if is, ok := findStub(t.Context(), url); !ok || is.DataDir != dir {
		t.Errorf("%+v, %v, want the folder %s", is, ok, dir)
	}
	response, err := http.Post(url+"/v3/kv/range", "application/json", nil)
	if err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("etcd's API: %v, %v", response, err)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("it ends: %v", err)
	}
}

// What is no stand-in is not taken for one: an etcd's data would else seem to be gone.
func TestWhoIsNoStandIn(t *testing.T) {
	for _, says := range []string{
		`{"etcdserver":"3.7.0","etcdcluster":"3.7.0","storage":"3.7.0"}`,
		`{"trellis":"v1","dataDir":"relative"}`,
		`{"dataDir":"/data"}`,
		`hello`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_,
				_ = io.WriteString(w, says)
		}))
		if is, ok := findStub(t.Context(), server.URL); ok {
			t.Errorf("%s: taken for %+v", says, is)
		}
		server.Close()
		if is, ok := findStub(t.Context(), server.URL); ok {
			t.Errorf("nobody listens, taken for %+v", is)
		}
	}
}

// Where there can be no link there is a copy.
func TestLinkOrCopy(t *testing.T) {
	const elsewhere = "/proc/version" // of a file system that has no links
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
		t.Errorf("it cannot be run: %v, %v", info.Mode(), err)
	}
}
