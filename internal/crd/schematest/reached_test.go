package schematest

import (
	"bufio"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var covered = regexp.MustCompile(`^k8s\.io/(?:apiextensions-apiserver|kube-openapi)/pkg/(.*/)([^/]*):(\d+)\.\S+ ` +
	`(\d+) (\d+)$`)

// linesOf calls f with each line of a file.
func linesOf(t *testing.T, path string, f func(line string)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		f(lines.Text())
	}
}

// unreached returns the blocks of upstream's statements that testdata/unreached.txt lists as unreachable.
func unreached(t *testing.T) map[string]bool {
	all := map[string]bool{}
	linesOf(t, "testdata/unreached.txt", func(line string) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			return
		}
		for _, n := range words[1:] {
			all[words[0]+":"+n] = true
		}
	})
	return all
}

// statements holds the numbers of reached statements, of unreachable statements, and of all statements.
type statements struct{ reached, never, all int }

// TestReached checks the cover profile TEST_COVERPROFILE of the tests of this package. The tests must reach at
// least 95 % of the reachable statements in each of upstream's packages. Statements that are listed as unreachable
// must not be reached.
func TestReached(t *testing.T) {
	profile := os.Getenv("TEST_COVERPROFILE")
	if profile == "" {
		t.Skip("TEST_COVERPROFILE is not set: see doc_test.go for how to create a cover profile")
	}
	never, sum := unreached(t), map[string]statements{}
	stale := maps.Clone(never)
	linesOf(t, profile, func(line string) {
		m := covered.FindStringSubmatch(line)
		if m == nil {
			return
		}
		size, _ := strconv.Atoi(m[4])
		at := m[1] + m[2] + ":" + m[3]
		for _, name := range []string{m[1], "all"} {
			s := sum[name]
			switch s.all += size; {
			case m[5] != "0":
				s.reached += size
			case never[at]:
				s.never += size
			case name != "all":
				t.Logf("not reached: %s", at)
			}
			sum[name] = s
		}
		if m[5] == "0" {
			delete(stale, at)
		}
	})
	for at := range stale {
		t.Errorf("%s is listed as unreached, but is reached or is not the start of a block", at)
	}
	for name, s := range sum {
		share := 100 * float64(s.reached) / float64(s.all-s.never)
		t.Logf("%5.1f %% of all %4d statements, %5.1f %% of the %4d that can be reached: %s",
			100*float64(s.reached)/float64(s.all), s.all, share, s.all-s.never, name)
		if share < 95 {
			t.Errorf("%s: only %.1f %%", name, share)
		}
	}
	if len(sum) < 10 {
		t.Errorf("%s contains %d packages, want at least 9", profile, len(sum)-1)
	}
}
