package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// promisesScript is the script that checks the promises of docs/security.md.
const promisesScript = "testdata/defaults/promises.txtar"

// TestDefaults starts a server and a cluster with the commands of README.md, and checks the promises of
// docs/security.md.
func TestDefaults(t *testing.T) {
	f := &fixture{T: t}
	dir := f.newNodesDir(1)
	bin := filepath.Join(dir, "bin")
	f.must(os.Mkdir(bin, 0o755))
	f.buildPrograms(bin, "./cmd/trellis")
	f.must(os.Symlink("trellis", filepath.Join(bin, "kubectl")))
	self, err := os.Executable()
	f.must(err)
	f.must(os.Symlink(self, filepath.Join(bin, "trellis-cluster")))
	examples, err := filepath.Abs(filepath.Join(repository, "examples"))
	f.must(err)
	f.must(os.Symlink(examples, filepath.Join(dir, "examples")))
	t.Cleanup(func() {
		for _, log := range []string{"server.log", "cluster.log"} {
			if text, err := os.ReadFile(filepath.Join(dir, log)); t.Failed() && err == nil {
				t.Logf("%s:\n%s", log, text)
			}
		}
	})
	testscript.Run(t, testscript.Params{
		Dir:  filepath.Dir(promisesScript),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"eventually": eventually},
		Setup: func(env *testscript.Env) error {
			for name, value := range map[string]string{
				"FOLDER": dir, "HOME": filepath.Join(env.WorkDir, ".home"), "KUBECONFIG": filepath.Join(dir, ".trellis",
					"admin.kubeconfig"),
				"PATH":           bin + string(filepath.ListSeparator) + env.Getenv("PATH"),
				isolatedVariable: os.Getenv(isolatedVariable),
			} {
				env.Setenv(name, value)
			}
			return nil
		},
		RequireExplicitExec: true,
	})
}

// TestPromisesAreChecked checks that promisesScript covers exactly the promises of docs/security.md. A promise is
// identified by the first test that the page names for it. For each promise, the script contains a check, or its file
// "elsewhere" explains why there is none.
func TestPromisesAreChecked(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repository, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(promisesScript)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n## Promises\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var promised []string
	for _, row := range regexp.MustCompile("(?m)^\\|.+\\|.*?`([^`]+)`").FindAllStringSubmatch(table, -1) {
		promised = append(promised, row[1])
	}
	if rows := strings.Count(table, "\n|") - 2; len(promised) != rows || rows == 0 { // without the two header rows
		t.Errorf("%d of %d promises name a test", len(promised), rows)
	}
	var checked []string
	check := regexp.MustCompile("(?m)^(?:# )?`?(Test[\\w/]+|internal/\\w+)`?: ")
	for _, line := range check.FindAllStringSubmatch(string(script), -1) {
		checked = append(checked, line[1])
	}
	for _, name := range promised {
		if !slices.Contains(checked, name) {
			t.Errorf("%s: docs/security.md has a promise for this test, but %s has neither a check nor a reason", name,
				promisesScript)
		}
	}
	for _, name := range checked {
		if !slices.Contains(promised, name) {
			t.Errorf("%s: %s has a check with this name, but docs/security.md has no promise for it", name,
				promisesScript)
		}
	}
}
