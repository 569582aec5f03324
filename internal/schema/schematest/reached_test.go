package schematest

import (
	"bufio"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var covered = regexp.MustCompile(`^k8s\.io/(?:apiextensions-apiserver/pkg/apiserver|kube-openapi/pkg)/(.*/)([^/]*):(\d+)\.\S+ (\d+) (\d+)$`)

// linesOf calls f with the lines of a file.
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

// unreached are the blocks of upstream's statements that testdata/unreached.txt says no caller comes to.
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

// What TEST_COVERPROFILE, a cover profile of the tests of this package, says they reach of upstream: at least 90 % of the
// statements of each of its packages that any caller comes to.
func TestReached(t *testing.T) {
	profile := os.Getenv("TEST_COVERPROFILE")
	if profile == "" {
		t.Skip("TEST_COVERPROFILE names no cover profile: doc_test.go says how to make one")
	}
	never, sum := unreached(t), map[string][2]int{}
	linesOf(t, profile, func(line string) {
		m := covered.FindStringSubmatch(line)
		if m == nil || never[m[1]+m[2]+":"+m[3]] && m[5] == "0" {
			return
		}
		size, _ := strconv.Atoi(m[4])
		for _, name := range []string{m[1], "all"} {
			s := sum[name]
			if s[1] += size; m[5] != "0" {
				s[0] += size
			}
			sum[name] = s
		}
	})
	for name, s := range sum {
		share := 100 * float64(s[0]) / float64(s[1])
		t.Logf("%5.1f %% of %4d statements: %s", share, s[1], name)
		if share < 90 {
			t.Errorf("%s: only %.1f %%", name, share)
		}
	}
	if len(sum) < 8 {
		t.Errorf("%s holds only %d packages", profile, len(sum)-1)
	}
}
