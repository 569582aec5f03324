package server

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checkListenError fails the test unless err contains all words.
func checkListenError(t *testing.T, l net.Listener, err error, words ...string) {
	t.Helper()
	if err == nil {
		_ = l.Close()
		t.Fatalf("listenSocket succeeds, want an error with %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %v does not contain %q", err, w)
		}
	}
}

// createStaleSocket creates a socket without a listener.
func createStaleSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSocket checks that only the server's user may use the socket (KON-020).
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.socket")
	l, err := listenSocket(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v, want 0600", info.Mode(), err)
	}
	if f, err := os.Create(filepath.Join(filepath.Dir(path), "other")); err != nil {
		t.Error(err)
	} else if info, err := f.Stat(); err != nil || info.Mode().Perm() == 0o600 {
		t.Errorf("mode %v, error %v: the umask is not restored", info.Mode(), err)
	}
}

// TestExistingSocket checks that --delete-existing-uds-file deletes a stale socket, but neither a socket in
// use nor a file (KON-021).
func TestExistingSocket(t *testing.T) {
	dir := t.TempDir()
	old, alive, file := filepath.Join(dir, "old"), filepath.Join(dir, "alive"), filepath.Join(dir, "file")
	createStaleSocket(t, old)
	l, err := listenSocket(old, false)
	checkListenError(t, l, err, "--uds-name", "stale socket", "--delete-existing-uds-file")
	if l, err = listenSocket(old, true); err != nil {
		t.Fatalf("stale socket: %v", err)
	}
	_ = l.Close()

	first, err := listenSocket(alive, true)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	l, err = listenSocket(alive, true)
	checkListenError(t, l, err, "--uds-name", "another server answers")
	if c, err := net.Dial("unix", alive); err != nil {
		t.Errorf("the socket of the first server is not reachable: %v", err)
	} else {
		_ = c.Close()
	}

	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err = listenSocket(file, true)
	checkListenError(t, l, err, "--uds-name", "not a socket")
	if data, err := os.ReadFile(file); err != nil || string(data) != "content" {
		t.Errorf("file content %q, error %v", data, err)
	}
}

// TestInvalidSocketPath checks the errors of paths at which no socket can be created (KON-020).
func TestInvalidSocketPath(t *testing.T) {
	dir := t.TempDir()
	l, err := listenSocket(filepath.Join(dir, "none", "s"), true)
	checkListenError(t, l, err, "--uds-name", "directory", "create")
	l, err = listenSocket(filepath.Join(dir, strings.Repeat("x", maxSocketPath)), true)
	checkListenError(t, l, err, "--uds-name", "at most")
}
