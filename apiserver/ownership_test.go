//go:build unix

package apiserver_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/apiserver"
)

// TestUnsafeDataDirectory checks that a server does not start with a data directory that other users can change, or
// with keys that other users can read or own. The error ends with a command that fixes the problem. A directory that
// its group can write to causes only a warning.
func TestUnsafeDataDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	begin := func() (string, error) {
		var lines bytes.Buffer
		s, err := apiserver.Start(context.Background(), apiserver.Config{DataDir: dir,
			Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		if err == nil {
			err = s.Shutdown()
		}
		return lines.String(), err
	}
	if lines, err := begin(); err != nil || strings.Contains(lines, "other users can change") {
		t.Fatal(lines, err)
	}
	mode := func(mode fs.FileMode) func(string) error {
		return func(path string) error { return os.Chmod(path, mode) }
	}
	chownOther := func(path string) error { return os.Lchown(path, 12345, -1) }
	for _, c := range []struct {
		path, command string
		change        func(path string) error
		root          bool
	}{
		{".", "chmod o-w", mode(0o777), false},
		{".", "chmod o-w", mode(0o777 | fs.ModeSticky), false},
		{"pki", "chmod o-w", mode(0o703), false},
		{"store", "chmod o-w", mode(0o777), false},
		{"pki/ca.key", "chmod o-rw", mode(0o644), false},
		{"pki/sa.key", "chmod o-rw", mode(0o602), false},
		{"pki/admin.key", "chmod o-rw", mode(0o604), false},
		{"pki/ca.crt", "chmod o-w", mode(0o666), false},
		{"admin.kubeconfig", "chmod o-rw", mode(0o644), false},
		{".", "chown -Rh", chownOther, true},
		{"pki", "chown -Rh", chownOther, true},
		{"pki/front-proxy-ca.key", "chown -Rh", chownOther, true},
		{"pki/ca.crt", "chown -Rh", chownOther, true},
		{"admin.kubeconfig", "chown -Rh", chownOther, true},
	} {
		if c.root && os.Geteuid() != 0 {
			continue // only root can give files to another user
		}
		path := filepath.Join(dir, c.path)
		if err := c.change(path); err != nil {
			t.Fatal(err)
		}
		_, err := begin()
		if err == nil {
			t.Fatalf("%s: the server started, want an error with %s", c.path, c.command)
		}
		_, command, _ := strings.Cut(err.Error(), "then run: ")
		if !strings.HasPrefix(command, c.command+" ") || !strings.HasSuffix(command, " "+path) {
			t.Fatalf("%s: no %s in %v", c.path, c.command, err)
		}
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v %s", command, err, out)
		}
		if _, err := begin(); err != nil {
			t.Fatalf("%s, after %s: %v", c.path, command, err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Join(dir, "store"), 0o700), os.Chmod(dir, 0o770|fs.ModeSetgid),
		os.Chmod(filepath.Join(dir, "pki", "ca.key"), 0o660)); err != nil {
		t.Fatal(err)
	}
	if lines, err := begin(); err != nil || strings.Count(lines, "other users can change") != 1 ||
		!strings.Contains(lines, "chmod g-w "+dir) {
		t.Errorf("a directory with an fsGroup: %v %s", err, lines)
	}
}

// TestPlantedCA checks that the server does not trust a data directory or a CA that another user has created before its
// first start.
func TestPlantedCA(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to another user")
	}
	dir := filepath.Join(t.TempDir(), "data")
	s := start(t, apiserver.Config{DataDir: dir})
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pki/ca.crt", "pki/ca.key", "pki", "."} { // each of them is sufficient
		if err := os.Lchown(filepath.Join(dir, name), 12345, -1); err != nil {
			t.Fatal(err)
		}
		if s, err := apiserver.Start(context.Background(), apiserver.Config{DataDir: dir}); err == nil {
			_ = s.Shutdown()
			t.Errorf("the server trusts %s of another user", name)
		}
		if err := os.Lchown(filepath.Join(dir, name), 0, -1); err != nil {
			t.Fatal(err)
		}
	}
}
