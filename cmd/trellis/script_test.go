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

// otherServer is an environment variable that can contain a kubeconfig of another API server. If it is set, the
// scripts run against that server one after the other. So they can be checked with a real kube-apiserver. The scripts
// delete all CRDs of this server in groups below example.com, and all its namespaces whose names begin with script-.
const otherServer = "TEST_KUBECONFIG"

func TestMain(m *testing.M) {
	command := func() { os.Exit(run(os.Args)) }
	testscript.Main(tests{m}, map[string]func(){"trellis": command, "kubectl": command, "kube-apiserver": command,
		"etcd": command, "proxy-server": command})
}

// sharedKubectl is an environment variable with the folder of the kubectl that the tests share. A test that runs in a
// process of its own inherits it.
const sharedKubectl = "TEST_KUBECTL_FOLDER"

// tests runs the tests with a folder for their kubectl.
type tests struct{ *testing.M }

func (m tests) Run() int {
	if os.Getenv(sharedKubectl) != "" {
		return m.M.Run()
	}
	dir, err := os.MkdirTemp("", "kubectl-")
	if err == nil {
		err = os.Setenv(sharedKubectl, dir)
	}
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	return m.M.Run()
}

// kubectlDir returns a folder to put first in PATH. If the test runs with the race detector, the folder contains a
// kubectl that is built without it. Otherwise the folder is empty. With the race detector, kubectl would start five
// times slower and print a warning on stderr.
func kubectlDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv(sharedKubectl)
	file := filepath.Join(dir, "kubectl")
	if _, err := os.Stat(file); err == nil || !raceDetector {
		return dir
	}
	if out, err := exec.Command("go", "build", "-o", file, ".").CombinedOutput(); err != nil {
		t.Fatalf("build kubectl: %v\n%s", err, out)
	}
	return dir
}

// TestScripts runs the scripts in testdata/script, each against a separate server.
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

// TestPrograms runs the scripts in testdata/program, which start servers themselves.
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

// setUp sets the variables of a script. They include its kubeconfig and a separate home folder, in which kubectl
// caches discovery.
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
