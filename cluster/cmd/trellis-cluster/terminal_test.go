package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// repository is the root of the repository.
const repository = "../../.."

// terminal runs commands in a folder. PATH contains kubectl and trellis, which use the fixture's server.
type terminal struct {
	*fixture
	dir    string
	env    []string
	prefix []string // first words of each command, which run the rest on another machine; empty for this machine
}

// newTerminal returns a terminal for a folder. It builds trellis, kubectl and the given packages of the main module,
// and adds them to PATH.
func (f *fixture) newTerminal(dir string, packages ...string) *terminal {
	f.Helper()
	bin := filepath.Join(dir, "path")
	f.must(os.MkdirAll(bin, 0o755))
	f.buildPrograms(bin, append([]string{"./cmd/trellis"}, packages...)...)
	f.must(os.Symlink("trellis", filepath.Join(bin, "kubectl")))
	return &terminal{fixture: f, dir: dir, env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"),
		"KUBECONFIG="+f.server.Kubeconfig, "CGO_ENABLED=")}
}

// programsDir is the folder of the programs that the tests share, because linking them takes long.
var programsDir string

// buildPrograms adds the programs of packages of the main module to a folder.
func (f *fixture) buildPrograms(into string, packages ...string) {
	f.Helper()
	if testing.Short() {
		f.Skip("it builds programs: run the tests without -short")
	}
	for _, p := range packages {
		shared := filepath.Join(programsDir, filepath.Base(p))
		if _, err := os.Stat(shared); err != nil {
			build := exec.Command("go", "build", "-o", shared, p)
			build.Dir, build.Env = repository, append(os.Environ(), "CGO_ENABLED=")
			if out, err := runInHostNetwork(f.T, build); err != nil {
				f.Fatalf("%v\n%s", err, out)
			}
		}
		f.must(os.Link(shared, filepath.Join(into, filepath.Base(p))))
	}
}

// link creates the symbolic link name to a file. The link is in the terminal's folder.
func (t *terminal) link(name, file string) {
	t.Helper()
	_, err := os.Stat(file)
	t.must(err)
	file, err = filepath.Abs(file)
	t.must(err)
	t.must(os.MkdirAll(filepath.Dir(filepath.Join(t.dir, name)), 0o700))
	t.must(os.Symlink(file, filepath.Join(t.dir, name)))
}

// run runs commands in a shell. The shell exits when a command fails.
func (t *terminal) run(commands string) (output string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*testTimeout)
	defer cancel()
	line := slices.Concat(t.prefix, []string{"sh", "-eu", "-c", commands})
	c := exec.CommandContext(ctx, line[0], line[1:]...)
	c.Dir, c.Env, c.WaitDelay = t.dir, t.env, testTimeout
	out, err := c.CombinedOutput()
	return string(out), err
}

// runBlock runs a block of commands from a page. The current folder and the exported variables are kept for the next
// block, as if one shell ran all blocks.
func (t *terminal) runBlock(block string) (output string, err error) {
	session := filepath.Join(t.dir, ".session")
	return t.run(fmt.Sprintf("if [ -e %[1]s ]; then . %[1]s; fi\n%[2]s\n{ export -p; echo \"cd '$PWD'\"; } > %[1]s",
		session, block))
}

// expect runs commands that must succeed. Their output must contain the given lines in any order.
func (t *terminal) expect(commands, lines string) {
	t.Helper()
	output, err := t.run(commands)
	if err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, output)
	}
	for line := range strings.Lines(lines) {
		if line = mask(line); strings.Trim(line, ".\n") != "" && !strings.Contains(mask(output), line) {
			t.Errorf("%s: no line %q in\n%s", commands, line, output)
		}
	}
}

// masks replaces text that differs between runs: ages, times, revisions, UIDs, hashes of templates, the random parts of
// the names of Pods, the numbers of nodes, and the width of columns.
var masks = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`"resourceVersion": "\d+"`), "VERSION"},
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`[bcdfghjklmnpqrstvwxz2456789]{8,10}(-?")`), "HASH$1"},
	{regexp.MustCompile(`\b(\d+[smhd])+\b`), "AGE"},
	{regexp.MustCompile(`\bnode-\d\b`), "NODE"},
	{regexp.MustCompile(`(-[bcdfghjklmnpqrstvwxz2456789]{4,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "-POD"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(` \n`), "\n"},
}

func mask(text string) string {
	for _, m := range masks {
		text = m.pattern.ReplaceAllString(text, m.replacement)
	}
	return text
}

// expectEventually repeats a command until its output contains the text. The command may fail.
func (t *terminal) expectEventually(command, text string) {
	t.Helper()
	output := ""
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 2*testTimeout, true,
		func(context.Context) (bool, error) {
			output, _ = t.run(command)
			return strings.Contains(output, text), nil
		})
	if err != nil {
		t.Fatalf("%s: got no output with %q; last output:\n%s", command, text, output)
	}
}

// waitForTwoNodes waits until kubectl lists two ready nodes.
func (t *terminal) waitForTwoNodes() {
	t.Helper()
	t.expect(`kubectl wait --for=create node/node-1 --timeout=60s
kubectl wait --for=create node/node-2 --timeout=60s
kubectl wait --for=condition=Ready node/node-1 node/node-2 --timeout=60s
kubectl get nodes`, "NAME STATUS ROLES AGE VERSION\nnode-1 Ready <none> 1s v1.37.1")
}
