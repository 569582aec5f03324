package node

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLogs checks that the links to logs are in the node's folder. It checks that a relative pattern matches no files,
// because the kubelet removes the files that such a pattern matches.
func TestLogs(t *testing.T) {
	root := t.TempDir()
	l := logOS{root: root}
	link := "/var/log/containers/main_default_main-1.log"
	if err := l.Symlink("/elsewhere", link); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(filepath.Join(root, "containers", filepath.Base(link))); err != nil ||
		to != "/elsewhere" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if found, err := l.Glob("/var/log/containers/*.log"); err != nil || len(found) != 1 {
		t.Errorf("got links %v, %v; want one", found, err)
	}
	if err := l.Remove(link); err != nil {
		t.Error(err)
	}
	t.Chdir(root)
	if err := os.WriteFile("precious", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := l.Glob("*"); err != nil || len(found) != 0 {
		t.Errorf("got files %v, %v for a relative pattern; want none", found, err)
	}
}
