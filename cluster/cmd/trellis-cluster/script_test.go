package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
)

// TestScripts runs the scripts in testdata/script, which contain commands of users. All scripts share a cluster with
// two nodes, and each script has a separate namespace.
func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds kubectl: run the tests without -short")
	}
	f := newFullFixture(t)
	dir := f.newNodesDir(2)
	f.buildPrograms(dir, "./cmd/trellis")
	f.must(os.Symlink("trellis", filepath.Join(dir, "kubectl")))
	self, err := os.Executable()
	f.must(err)
	f.must(os.Symlink(self, filepath.Join(dir, "web")))
	startProgram(t, "trellis-cluster", f.upArgs(dir, 2, "nginx:*="+filepath.Join(dir, "web"),
		"gcr.io/google-samples/hello-app:*="+filepath.Join(dir, "web"), "busybox:*=/bin")...)
	f.waitForNode("node-1")
	f.waitForNode("node-2")
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"eventually": eventually},
		Setup:               func(env *testscript.Env) error { return f.setUp(env, dir) },
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// setUp creates a namespace for a script. It is the default namespace of kubectl, and the variable NAMESPACE contains
// its name. The variable NODES contains the path of the folder in which each node has a folder.
func (f *fixture) setUp(env *testscript.Env, dir string) error {
	namespace, err := f.CoreV1().Namespaces().Create(f.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "script-"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	account := func(ctx context.Context) (bool, error) { // Pods need the service account default
		_, err := f.CoreV1().ServiceAccounts(namespace.Name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	}
	if err := wait.PollUntilContextTimeout(f.Context(), 10*time.Millisecond, testTimeout, true, account); err != nil {
		return err
	}
	config, err := clientcmd.LoadFromFile(f.server.Kubeconfig)
	if err != nil {
		return err
	}
	config.Contexts[config.CurrentContext].Namespace = namespace.Name
	kubeconfig := filepath.Join(env.WorkDir, ".kubeconfig")
	for name, value := range map[string]string{
		"KUBECONFIG": kubeconfig, "NAMESPACE": namespace.Name, "HOME": filepath.Join(env.WorkDir, ".home"),
		"NODES": filepath.Join(dir, ".trellis-cluster"),
		"PATH":  dir + string(filepath.ListSeparator) + env.Getenv("PATH"),
	} {
		env.Setenv(name, value)
	}
	return clientcmd.WriteToFile(*config, kubeconfig)
}

// eventually implements the command `eventually PATTERN COMMAND…` of scripts. It repeats COMMAND until COMMAND
// succeeds and its output matches PATTERN.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually pattern command...")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	deadline := time.After(testTimeout)
	for tick := time.NewTicker(200 * time.Millisecond); ; {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("%v: no match for %q within %v: %v", args[1:], args[0], testTimeout, err)
		}
	}
}
