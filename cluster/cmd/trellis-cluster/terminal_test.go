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

// repository is the folder above the nested module.
const repository = "../../.."

// terminal is a folder in which commands are typed. kubectl and trellis are in PATH, and talk to the world's server.
type terminal struct {
	*fixture
	dir   string
	env   []string
	prefix []string // what begins a command line on another machine
}

// newTerminal builds the programs of the repository's own module that are typed there, beside kubectl.
func (f *fixture) newTerminal(dir string, packages ...string) *terminal {
	f.Helper()
	bin := filepath.Join(dir, "path")
	f.must(os.MkdirAll(bin, 0o755))
	f.buildPrograms(bin, append([]string{"./cmd/trellis"}, packages...)...)
	f.must(os.Symlink("trellis", filepath.Join(bin, "kubectl")))
	return &terminal{fixture: f, dir: dir, env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+f.server.Kubeconfig, "CGO_ENABLED=")}
}

// buildPrograms builds programs of the repository's own module into a folder.
func (f *fixture) buildPrograms(into string, packages ...string) {
	f.Helper()
	if testing.Short() {
		f.Skip("builds the programs; left out with -short")
	}
	build := exec.Command("go", append([]string{"build", "-o", into}, packages...)...)
	build.Dir, build.Env = repository, append(os.Environ(), "CGO_ENABLED=")
	if out, err := runInHostNetwork(f.T, build); err != nil {
		f.Fatalf("%v\n%s", err, out)
	}
}

// link puts a link to a file into the folder.
func (t *terminal) link(name, file string) {
	t.Helper()
	_, err := os.Stat(file)
	t.must(err)
	file, err = filepath.Abs(file)
	t.must(err)
	t.must(os.MkdirAll(filepath.Dir(filepath.Join(t.dir, name)), 0o700))
	t.must(os.Symlink(file, filepath.Join(t.dir, name)))
}

// run types commands, up to the first that fails.
func (t *terminal) run(commands string) (output string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*testTimeout)
	defer cancel()
	line := slices.Concat(t.prefix, []string{"sh", "-eu", "-c", commands})
	c := exec.CommandContext(ctx, line[0], line[1:]...)
	c.Dir, c.Env, c.WaitDelay = t.dir, t.env, testTimeout
	out, err := c.CombinedOutput()
	return string(out), err
}

// runBlock types a block of a page as its reader does: a folder that one goes to, and a variable that it exports, are those of the next as well.
func (t *terminal) runBlock(block string) (output string, err error) {
	session := filepath.Join(t.dir, ".session")
	return t.run(fmt.Sprintf("if [ -e %[1]s ]; then . %[1]s; fi\n%[2]s\n{ export -p; echo \"cd '$PWD'\"; } > %[1]s", session, block))
}

// expect types commands that pass. They print these lines, in any order, among others.
func (t *terminal) expect(commands, lines string) {
	t.Helper()
	output, err := t.run(commands)
	if err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, output)
	}
	for line := range strings.Lines(lines) {
		if line = mask(line); strings.Trim(line, ".\n") != "" && !strings.Contains(mask(output), line) {
			t.Errorf("%s: there is no line %q in\n%s", commands, line, output)
		}
	}
}

// masks are what differs from one time to the next: ages, times, revisions, uids, hashes of templates, the ends of the names of Pods, which
// node it is, the width of columns.
var masks = []struct {
	what *regexp.Regexp
	by   string
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
		text = m.what.ReplaceAllString(text, m.by)
	}
	return text
}

// expectEventually types a command until it says these words, however it ends.
func (t *terminal) expectEventually(command, words string) {
	t.Helper()
	output := ""
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 2*testTimeout, true, func(context.Context) (bool, error) {
		output, _ = t.run(command)
		return strings.Contains(output, words), nil
	})
	if err != nil {
		t.Fatalf("%s: it does not say %q, but\n%s", command, words, output)
	}
}

// waitForTwoNodes returns once kubectl lists two that are ready.
func (t *terminal) waitForTwoNodes() {
	t.Helper()
	t.expect(`kubectl wait --for=create node/node-1 --timeout=60s
kubectl wait --for=create node/node-2 --timeout=60s
kubectl wait --for=condition=Ready node/node-1 node/node-2 --timeout=60s
kubectl get nodes`, "NAME STATUS ROLES AGE VERSION\nnode-1 Ready <none> 1s v1.37.1")
}
