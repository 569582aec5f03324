package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const repository = "../../.."

// write creates a repository with a list of allowed skips and returns the path of the list.
func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), ".ci", "skips")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// tests is a package of tests: one passes, one is skipped, one has a skipped subtest, and one fails if FAILS or PANICS
// is set.
const tests = `package demo

import ("os"; "testing")

func TestPasses(t *testing.T) { t.Log("not printed") }
func TestSkips(t *testing.T)  { t.Skip("nothing to test with") }
func TestHasPart(t *testing.T) {
	t.Run("one", func(*testing.T) {})
	t.Run("two words", func(t *testing.T) { t.Skip("no second") })
}
func TestFails(t *testing.T) {
	t.Log("printed")
	if os.Getenv("FAILS") != "" { t.Error("it has failed") }
	if os.Getenv("PANICS") != "" { panic("it has panicked") }
}
`

// events runs the package in the constant tests as part of a nested module. It returns the output of go test -json.
func events(t *testing.T, env ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "demo"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"go.mod": "module github.com/trellis-k8s/trellis/cluster\n\ngo 1.26\n",
		"demo/demo_test.go": tests} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-json", "./...")
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "GOWORK=off"), env...)
	out, err := cmd.Output()
	if failed := err != nil; failed != (len(env) > 0) {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestUnlistedSkips checks that each skipped test and subtest of a nested module needs a separate line. The line names
// the package relative to the root of the repository.
func TestUnlistedSkips(t *testing.T) {
	const (
		test = "cluster/demo TestSkips | !it | why\n"
		part = "cluster/demo TestHasPart/two_words | !it | why\n"
	)
	all := events(t)
	for list, refused := range map[string][]string{
		"":                                       {"cluster/demo TestSkips", "cluster/demo TestHasPart/two_words"},
		"# cluster/demo TestSkips | !it | why\n": {"cluster/demo TestSkips", "cluster/demo TestHasPart/two_words"},
		test:                                     {"cluster/demo TestHasPart/two_words"},
		part:                                     {"cluster/demo TestSkips"},
		test + "\n" + part:                       nil,
		"demo TestSkips | !it | why\n" + part:    {"cluster/demo TestSkips"},
		"cluster/demo TestSkip | !it | why\n" + part:        {"cluster/demo TestSkips"},
		test + "cluster/demo TestHasPart | !it | why\n":     {"cluster/demo TestHasPart/two_words"},
		test + "cluster/demo TestHasPart/... | !it | why\n": nil,
		"cluster/demo ... | $TEST_OF_NOTHING | why\n":       nil,
		"cluster/demo ... | go | a program that is here\n": {"cluster/demo TestSkips",
			"cluster/demo TestHasPart/two_words"},
		"cluster/demo ... | go !it | one of two\n": nil,
		"cluster/demo ... | .ci/skips | a file that is here\n": {"cluster/demo TestSkips",
			"cluster/demo TestHasPart/two_words"},
		"cluster/demo ... | ../shared | a folder that is not there\n": nil,
	} {
		var out strings.Builder
		err := check(write(t, list), strings.NewReader(all), &out)
		if (err == nil) != (refused == nil) {
			t.Errorf("%q: %v", list, err)
		}
		for _, name := range refused {
			if !strings.Contains(fmt.Sprint(err), name+" was skipped: ") {
				t.Errorf("%q: %v, without %s", list, err, name)
			}
		}
		if strings.Count(fmt.Sprint(err), " was skipped: ") != len(refused) {
			t.Errorf("%q: %v, want %v", list, err, refused)
		}
		if printed := out.String(); !strings.HasPrefix(printed,
			"ok  \tgithub.com/trellis-k8s/trellis/cluster/demo\t") || strings.Count(printed, "\n") != 1 {
			t.Errorf("printed\n%s", printed)
		}
	}
	if err := check(write(t, ""), strings.NewReader(all), io.Discard); !strings.Contains(fmt.Sprint(err),
		"nothing to test with") {
		t.Errorf("the reason is missing: %v", err)
	}
}

// TestFailuresArePrinted checks that only the output of failing tests is printed.
func TestFailuresArePrinted(t *testing.T) {
	for variable, says := range map[string]string{"FAILS=1": "it has failed", "PANICS=1": "panic: it has panicked"} {
		var out strings.Builder
		err := check(write(t, "cluster/demo ... | !it | why"), strings.NewReader(events(t, variable)), &out)
		printed := out.String()
		if err != nil || !strings.Contains(printed, says) || !strings.Contains(printed, "--- FAIL: TestFails") ||
			!strings.Contains(printed, "\nFAIL\t") {
			t.Errorf("%s: %v\n%s", variable, err, printed)
		}
		if strings.Contains(printed, "not printed") || strings.Contains(printed, "=== RUN") {
			t.Errorf("%s: too much is printed\n%s", variable, printed)
		}
	}
}

// TestMistakesInLists checks that incomplete lines and a missing list are errors.
func TestMistakesInLists(t *testing.T) {
	for _, line := range []string{"cluster/demo TestSkips", "cluster/demo TestSkips | !it",
		"cluster/demo TestSkips | !it | ", "TestSkips | !it | why", "cluster/demo TestSkips |  | why"} {
		if _, err := parse("# a comment\n" + line + "\n"); err == nil || !strings.Contains(err.Error(), "line 2: ") {
			t.Errorf("%q: %v", line, err)
		}
	}
	if err := check(filepath.Join(t.TempDir(), "skips"), strings.NewReader(""), os.Stdout); err == nil {
		t.Error("a missing list is no error")
	}
}

// TestRequirements checks which needs count as missing.
func TestRequirements(t *testing.T) {
	r := requirements{root: filepath.Dir(filepath.Dir(write(t, ""))),
		lookup: func(name string) (string, bool) { return "x", name == "SET" }, superuser: true}
	for need, has := range map[string]bool{"root": true, ".ci/skips": true, "../no/such": false, "go": true,
		"no-such-program": false, "!cgroup": false, "/": true, "/no/such": false} {
		if r.has(need) != has {
			t.Errorf("%s: %v", need, !has)
		}
	}
	if !r.has("$SET") {
		t.Error("$SET is set")
	}
	if r.superuser = false; r.has("root") {
		t.Error("the user is not root")
	}
}

// testFunction matches the declarations of tests.
var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// TestListIsCurrent checks that .ci/skips is sorted and that each of its lines names an existing test.
func TestListIsCurrent(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, ".ci", "skips"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := parse(string(text))
	if err != nil || len(all) == 0 {
		t.Fatal(len(all), err)
	}
	if !slices.IsSortedFunc(all, func(a, b allowed) int {
		return strings.Compare(a.folder+" "+a.test, b.folder+" "+b.test)
	}) {
		t.Error(".ci/skips is not sorted")
	}
	for _, a := range all {
		files, _ := filepath.Glob(filepath.Join(repository, a.folder, "*_test.go"))
		name, _, _ := strings.Cut(strings.TrimSuffix(a.test, "..."), "/")
		found := name == "" && len(files) > 0
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range testFunction.FindAllStringSubmatch(string(source), -1) {
				found = found || m[1] == name
			}
		}
		if !found {
			t.Errorf("%s has no %s", a.folder, a.test)
		}
	}
}

// TestCIChecksSkips checks that .ci/run pipes the output of each go test through this program.
func TestCIChecksSkips(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, ".ci", "run"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || !strings.Contains(line, "go test") || strings.HasPrefix(line, "command=") {
			continue
		}
		if n++; !regexp.MustCompile(`^(\w+=\S+ )*tested `).MatchString(line) {
			t.Errorf(".ci/run has a go test whose skips are not checked: %s", line)
		}
	}
	if n == 0 || !strings.Contains(string(text), "tested ${command/go test/go test ") {
		t.Error(".ci/run does not check the skips of the README's command")
	}
}

// TestVerboseIsNotMore checks that tests do the same work with -v, because "go test -json" implies it.
func TestVerboseIsNotMore(t *testing.T) {
	for _, pattern := range []string{"*/*_test.go", "*/*/*_test.go", "*/*/*/*_test.go", "*/*/*/*/*_test.go"} {
		files, _ := filepath.Glob(filepath.Join(repository, pattern))
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(source), "testing."+"Verbose()") {
				t.Errorf("%s: the test does more work with -v, which .ci/run implies", file)
			}
		}
	}
}
