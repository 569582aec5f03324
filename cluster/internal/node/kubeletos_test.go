package node

import (
	"os"
	"path/filepath"
	"testing"
)

// The links to logs are in the node's folder, and no log is found where none is named: the kubelet removes what is found.
func TestLogs(t *testing.T) {
	root := t.TempDir()
	l := logOS{root: root}
	link := "/var/log/containers/main_default_main-1.log"
	if err := l.Symlink("/elsewhere", link); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(filepath.Join(root, "containers", filepath.Base(link))); err != nil || to != "/elsewhere" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if found, err := l.Glob("/var/log/containers/*.log"); err != nil || len(found) != 1 {
		t.Errorf("found: %v, %v", found, err)
	}
	if err := l.Remove(link); err != nil {
		t.Error(err)
	}
	t.Chdir(root)
	if err := os.WriteFile("precious", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := l.Glob("*"); err != nil || len(found) != 0 {
		t.Errorf("logs of a container that has none: %v, %v", found, err)
	}
}
