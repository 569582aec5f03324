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

// A server does not start in a data directory that other users can change, or with keys that they can read or have made.
// The error ends with the command after which it starts. A folder that its group can write to is a warning.
func TestDataDirectoryOfOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	begin := func() (string, error) {
		var lines bytes.Buffer
		s, err := apiserver.Start(context.Background(), apiserver.Config{DataDir: dir, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		if err == nil {
			err = s.Shutdown()
		}
		return lines.String(), err
	}
	if lines, err := begin(); err != nil || strings.Contains(lines, "open to others") {
		t.Fatal(lines, err)
	}
	mode := func(mode fs.FileMode) func(string) error {
		return func(path string) error { return os.Chmod(path, mode) }
	}
	stranger := func(path string) error { return os.Lchown(path, 12345, -1) }
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
		{".", "chown -Rh", stranger, true},
		{"pki", "chown -Rh", stranger, true},
		{"pki/front-proxy-ca.key", "chown -Rh", stranger, true},
		{"pki/ca.crt", "chown -Rh", stranger, true},
		{"admin.kubeconfig", "chown -Rh", stranger, true},
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
			t.Fatalf("%s: the server starts, where %s is to be demanded", c.path, c.command)
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
	if lines, err := begin(); err != nil || strings.Count(lines, "open to others") != 1 || !strings.Contains(lines, "chmod g-w "+dir) {
		t.Errorf("a folder with an fsGroup: %v %s", err, lines)
	}
}

// Another user makes the folder and a CA before the first start of the server. It trusts neither.
func TestPlantedCA(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to another user")
	}
	dir := filepath.Join(t.TempDir(), "data")
	s := start(t, apiserver.Config{DataDir: dir})
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pki/ca.crt", "pki/ca.key", "pki", "."} { // each alone is enough
		if err := os.Lchown(filepath.Join(dir, name), 12345, -1); err != nil {
			t.Fatal(err)
		}
		if s, err := apiserver.Start(context.Background(), apiserver.Config{DataDir: dir}); err == nil {
			_ = s.Shutdown()
			t.Errorf("%s of another user is trusted", name)
		}
		if err := os.Lchown(filepath.Join(dir, name), 0, -1); err != nil {
			t.Fatal(err)
		}
	}
}
