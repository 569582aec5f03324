//go:build unix

package ownership

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const otherUser = 12345

// runCommand runs the command that an Error contains.
func runCommand(t *testing.T, err error) {
	t.Helper()
	var untrusted *Error
	if !errors.As(err, &untrusted) || !strings.HasSuffix(err.Error(), untrusted.Command) {
		t.Fatalf("no command: %v", err)
	}
	if out, err := exec.Command("sh", "-c", untrusted.Command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", untrusted.Command, err, out)
	}
}

func asRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to another user")
	}
}

func mkdir(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFolder checks that a directory writable by all users is rejected with the command that corrects it. A group with
// write permission causes a warning.
func TestFolder(t *testing.T) {
	for mode, want := range map[os.FileMode]string{
		0o700: "", 0o755: "", 0o750: "",
		0o770: "warning", 0o775 | fs.ModeSetgid: "warning",
		0o777: "error", 0o702: "error", 0o777 | fs.ModeSticky: "error",
	} {
		dir := mkdir(t, filepath.Join(t.TempDir(), "it's the data"), mode)
		warnings, err := CheckDirectory(dir)
		got := ""
		switch {
		case err != nil:
			got = "error"
		case len(warnings) > 0 && strings.Contains(warnings[0], "chmod g-w '"):
			got = "warning"
		}
		if got != want {
			t.Errorf("%v: %q %v %v, want %q", mode, got, warnings, err, want)
		}
		if want != "error" {
			continue
		}
		runCommand(t, err)
		if _, err := CheckDirectory(dir); err != nil {
			t.Errorf("%v, after the command: %v", mode, err)
		}
	}
}

// TestParentFolder checks the warning about a parent directory that is writable by all users and has no sticky bit.
func TestParentFolder(t *testing.T) {
	parent := mkdir(t, filepath.Join(t.TempDir(), "parent"), 0o777)
	dir := mkdir(t, filepath.Join(parent, "between", "data"), 0o700)
	if warnings, err := CheckDirectory(dir); err != nil || len(warnings) != 1 ||
		!strings.HasSuffix(warnings[0], "chmod o-w "+parent) {
		t.Errorf("%v %v", warnings, err)
	}
	mkdir(t, parent, 0o777|fs.ModeSticky)
	if warnings, err := CheckDirectory(dir); err != nil || len(warnings) > 0 {
		t.Errorf("with the sticky bit: %v %v", warnings, err)
	}
}

// TestOwner checks that the directory and each file must belong to the user of this process or to root.
func TestOwner(t *testing.T) {
	asRoot(t)
	dir := mkdir(t, filepath.Join(t.TempDir(), "data"), 0o700)
	key := filepath.Join(dir, "ca.key")
	if err := errors.Join(os.WriteFile(key, []byte("key"), 0o600), os.Chown(key, otherUser, -1),
		os.Chown(dir, otherUser, -1)); err != nil {
		t.Fatal(err)
	}
	_, err := ReadKey(key)
	if err == nil {
		t.Error("read a key of another user")
	}
	if _, err = CheckDirectories(filepath.Dir(dir), "data", "none"); err == nil ||
		!strings.Contains(err.Error(), "belongs to user 12345") {
		t.Fatalf("the folder of another user: %v", err)
	}
	runCommand(t, err)
	if _, err := CheckDirectories(filepath.Dir(dir), "data", "none"); err != nil {
		t.Errorf("after the command: %v", err)
	}
	if _, err := ReadKey(key); err != nil {
		t.Errorf("after the command: %v", err)
	}
}

// TestLinks checks that a symbolic link on the path must not belong to another user, who could change its target.
func TestLinks(t *testing.T) {
	base := t.TempDir()
	mkdir(t, filepath.Join(base, "real", "data"), 0o700)
	link := filepath.Join(base, "link")
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	if _, err := CheckDirectory(filepath.Join(link, "data")); err != nil {
		t.Errorf("link of this user: %v", err)
	}
	asRoot(t)
	if err := os.Lchown(link, otherUser, -1); err != nil {
		t.Fatal(err)
	}
	_, err := CheckDirectory(filepath.Join(link, "data"))
	if err == nil {
		t.Fatal("a link of another user is accepted")
	}
	runCommand(t, err)
	if _, err := CheckDirectory(filepath.Join(link, "data")); err != nil {
		t.Errorf("after the command: %v", err)
	}
}

// TestFiles checks that other users must not have read or write permission for a key, and no write permission for a
// certificate. The group may read a key.
func TestFiles(t *testing.T) {
	for mode, want := range map[os.FileMode]struct{ key, file bool }{
		0o600: {true, true}, 0o400: {true, true}, 0o640: {true, true}, 0o660: {true, true},
		0o644: {false, true}, 0o604: {false, true}, 0o602: {false, false}, 0o666: {false, false},
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := errors.Join(os.WriteFile(path, []byte("text"), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		for name, read := range map[string]func(string) ([]byte, error){"key": ReadKey, "file": ReadFile} {
			accept := want.file
			if name == "key" {
				accept = want.key
			}
			text, err := read(path)
			if accept != (err == nil) || accept && string(text) != "text" {
				t.Errorf("%s with %v: %q %v", name, mode, text, err)
			}
		}
		if _, err := ReadKey(path); err != nil {
			runCommand(t, err)
			if _, err := ReadKey(path); err != nil {
				t.Errorf("%v, after the command: %v", mode, err)
			}
		}
	}
	if _, err := ReadKey(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
