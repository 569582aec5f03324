package locale_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	// Imported so that the packages of kubectl are initialized.
	_ "k8s.io/kubectl/pkg/cmd"

	"github.com/trellis-k8s/trellis/cmd/trellis/internal/locale"
)

// TestIsKubectl checks which command lines run kubectl or complete its commands.
func TestIsKubectl(t *testing.T) {
	for _, c := range []struct {
		args []string
		want bool
	}{
		{nil, false},
		{[]string{"trellis"}, false},
		{[]string{"trellis", "serve", "kubectl"}, false},
		{[]string{"trellis", "kubectl"}, true},
		{[]string{"trellis", "kubectl", "get"}, true},
		{[]string{"trellis", "__complete", "kubectl", ""}, true},
		{[]string{"trellis", "__completeNoDesc", "kubectl", ""}, true},
		{[]string{"trellis", "__complete", "serve", ""}, false},
		{[]string{"bin/kubectl", "get"}, true},
		{[]string{"bin/kubectl.exe"}, true},
		{[]string{"bin/kubectl-plugin"}, false},
	} {
		if got := locale.IsKubectl(c.args); got != c.want {
			t.Errorf("%q: %v, want %v", c.args, got, c.want)
		}
	}
}

// TestTranslationsAreNotLoaded checks that kubectl's translations, which take 4 MB of memory, are not loaded. It reads
// the runtime's trace of the memory that the initialization of each package allocates. Without the translations, every
// package of kubectl allocates less than 1 MB.
func TestTranslationsAreNotLoaded(t *testing.T) {
	c := exec.Command(os.Args[0], "-test.run=^$")
	c.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := regexp.MustCompile(`(?m)^init (k8s\.io/kubectl/\S+) .* (\d+) bytes,`).FindAllStringSubmatch(string(out),
		-1)
	if len(lines) == 0 {
		t.Fatalf("no trace:\n%s", out)
	}
	for _, l := range lines {
		if n, _ := strconv.Atoi(l[2]); n > 1<<20 {
			t.Errorf("the initialization of %s allocates %d bytes, want at most 1 MiB: were the translations loaded "+
				"before package locale was initialized?", l[1], n)
		}
	}
}
