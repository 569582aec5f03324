package server

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// refused fails unless the error names a flag and holds the words; nothing may listen.
func refused(t *testing.T, l net.Listener, err error, words ...string) {
	t.Helper()
	if err == nil {
		_ = l.Close()
		t.Fatalf("it listens; want an error with %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: lacks %q", err, w)
		}
	}
}

// leftOver makes a socket that nobody listens on any longer.
func leftOver(t *testing.T, path string) {
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

// KON-020: the socket is for the server's user alone.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.socket")
	l, err := listenSocket(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want 0600", info.Mode(), err)
	}
	if f, err := os.Create(filepath.Join(filepath.Dir(path), "other")); err != nil {
		t.Error(err)
	} else if info, err := f.Stat(); err != nil || info.Mode().Perm() == 0o600 {
		t.Errorf("%v, %v: the umask has stayed", info.Mode(), err)
	}
}

// KON-021: --delete-existing-uds-file removes what is left over, and nothing else.
func TestSocketThatExists(t *testing.T) {
	dir := t.TempDir()
	old, alive, file := filepath.Join(dir, "old"), filepath.Join(dir, "alive"), filepath.Join(dir, "file")
	leftOver(t, old)
	l, err := listenSocket(old, false)
	refused(t, l, err, "--uds-name", "stale socket", "--delete-existing-uds-file")
	if l, err = listenSocket(old, true); err != nil {
		t.Fatalf("what is left over: %v", err)
	}
	_ = l.Close()

	first, err := listenSocket(alive, true)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	l, err = listenSocket(alive, true)
	refused(t, l, err, "--uds-name", "another server answers")
	if c, err := net.Dial("unix", alive); err != nil {
		t.Errorf("the first server has lost its socket: %v", err)
	} else {
		_ = c.Close()
	}

	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err = listenSocket(file, true)
	refused(t, l, err, "--uds-name", "not a socket")
	if data, err := os.ReadFile(file); err != nil || string(data) != "precious" {
		t.Errorf("the file: %q, %v", data, err)
	}
}

// KON-020: a socket that cannot be is an error that says why.
func TestSocketThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	l, err := listenSocket(filepath.Join(dir, "none", "s"), true)
	refused(t, l, err, "--uds-name", "directory", "create")
	l, err = listenSocket(filepath.Join(dir, strings.Repeat("x", maxSocketPath)), true)
	refused(t, l, err, "--uds-name", "at most")
}
