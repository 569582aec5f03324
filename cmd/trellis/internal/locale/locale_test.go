package locale_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	// Here for what its packages do when they are initialised.
	_ "k8s.io/kubectl/pkg/cmd"

	"github.com/trellis-k8s/trellis/cmd/trellis/internal/locale"
)

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

// The translations are 4 MB once read. The runtime says what each package's
// initialisation allocated: without them, no package of kubectl needs a quarter of that.
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
			t.Errorf("%s allocates %d bytes when it is initialised: were the translations loaded before this "+
				"package came?", l[1], n)
		}
	}
}
