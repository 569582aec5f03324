package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/trellis-k8s/trellis/testserver"
)

// otherServer names a kubeconfig: the scripts then run against its server, one after the other,
// so that what they expect can be checked on the real thing. That server's CRDs in groups
// below example.com and its namespaces named script-… are deleted.
const otherServer = "TEST_KUBECONFIG"

func TestMain(m *testing.M) {
	command := func() { os.Exit(run(os.Args)) }
	testscript.Main(m, map[string]func(){"trellis": command, "kubectl": command, "kube-apiserver": command,
		"etcd": command, "proxy-server": command})
}

// kubectlDir is a folder to look for kubectl in. With the race detector kubectl starts five
// times slower and says on stderr that it is there, so kubectl is then built without.
func kubectlDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if raceDetector {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "kubectl"),
			".").CombinedOutput(); err != nil {
			t.Fatalf("build kubectl: %v\n%s", err, out)
		}
	}
	return dir
}

// TestScripts runs testdata/script, each script against a server of its own.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	bin := kubectlDir(t)
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".txtar"), func(t *testing.T) {
			kubeconfig := os.Getenv(otherServer)
			if kubeconfig == "" {
				t.Parallel()
				kubeconfig = testserver.Start(t,
					testserver.LocalServices("default/example-conversion-webhook-server")).Kubeconfig
			} else {
				cleanUp(t, kubeconfig)
			}
			testscript.Run(t, testscript.Params{
				Files:               []string{script},
				Cmds:                scriptCommands,
				Setup:               func(env *testscript.Env) error { return setUp(env, kubeconfig, bin) },
				ContinueOnError:     true,
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
			})
		})
	}
}

// TestPrograms runs testdata/program: scripts that start servers themselves.
func TestPrograms(t *testing.T) {
	bin := kubectlDir(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/program",
		Cmds:                scriptCommands,
		Setup:               func(env *testscript.Env) error { return setUp(env, "", bin) },
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// setUp gives a script a home of its own, where kubectl caches discovery, and its server.
func setUp(env *testscript.Env, kubeconfig, bin string) error {
	env.Setenv("PATH", bin+string(filepath.ListSeparator)+env.Getenv("PATH"))
	if kubeconfig != "" {
		absolute, err := filepath.Abs(kubeconfig)
		if err != nil {
			return err
		}
		env.Setenv("KUBECONFIG", absolute)
	}
	module, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	env.Setenv("MODULE", module)
	env.Values[webhookKey{}] = &runningWebhook{}
	env.Setenv("HOME", filepath.Join(env.WorkDir, ".home"))
	return nil
}
