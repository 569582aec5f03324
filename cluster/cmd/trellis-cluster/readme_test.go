package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// repository is the folder above the nested module.
const repository = "../../.."

// clusterBlock is what the README has people type to run Pods.
var clusterBlock = regexp.MustCompile("(?ms)^```sh cluster\n(.*?)^```$")

// build builds programs of the repository's own module.
func (w *world) build(into string, packages ...string) {
	w.Helper()
	w.must(os.MkdirAll(into, 0o700))
	c := exec.Command("go", append([]string{"build", "-o", into}, packages...)...)
	c.Dir, c.Env = repository, append(os.Environ(), "CGO_ENABLED=")
	if out, err := outside(w.T, c); err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
}

// TestReadme runs these commands as they are written, beside a server. The Pod runs, and what it says is told.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the programs; left out with -short")
	}
	w := whole(t)
	readme, err := os.ReadFile(filepath.Join(repository, "README.md"))
	w.must(err)
	blocks := clusterBlock.FindAllStringSubmatch(string(readme), -1)
	if len(blocks) != 1 {
		t.Fatalf("%d blocks", len(blocks))
	}
	dir := w.folder(1)
	bin := filepath.Join(dir, "path")
	for link, to := range map[string]string{"Makefile": "Makefile", "cluster": "cluster", "bin": "bin", ".trellis/admin.kubeconfig": w.server.Kubeconfig} {
		if !filepath.IsAbs(to) {
			to, err = filepath.Abs(filepath.Join(repository, to))
			w.must(err)
		}
		w.must(os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o700))
		w.must(os.Symlink(to, filepath.Join(dir, link)))
	}
	w.build(bin, "./cmd/trellis")
	c := exec.Command("sh", "-eu", "-c", "trap 'kill $!; wait' EXIT\n"+blocks[0][1])
	c.Dir, c.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG=", "CGO_ENABLED=")
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\nhello\n") || !strings.Contains(string(out), "node/node-1 ") {
		log, _ := os.ReadFile(filepath.Join(dir, ".trellis", "cluster.log"))
		t.Errorf("%v\n%s\n%s", err, out, log)
	}
}
