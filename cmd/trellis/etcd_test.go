package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
	"github.com/trellis-k8s/trellis/testserver"
)

// onEtcd lists the scripts that also run on etcd. They use most operations of a store.
var onEtcd = []string{"crontab", "crd-delete", "delete", "finalizers", "lists", "namespaces", "status", "scale",
	"versions", "watch"}

// TestScriptsOnEtcd runs some scripts against servers that store their objects in etcd, as with --etcd-servers.
func TestScriptsOnEtcd(t *testing.T) {
	e, bin := storagetest.StartEtcd(t), kubectlDir(t)
	for _, name := range onEtcd {
		t.Run(name, func(t *testing.T) {
			server := testserver.Start(t, testserver.With(func(c *apiserver.Config) {
				c.Etcd = etcd.Cluster{Servers: []string{e.URL}, Prefix: "/" + name}
			}))
			testscript.Run(t, testscript.Params{
				Files:               []string{filepath.Join("testdata", "script", name+".txtar")},
				Cmds:                scriptCommands,
				Setup:               func(env *testscript.Env) error { return setUp(env, server.Kubeconfig, bin) },
				ContinueOnError:     true,
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
			})
		})
	}
}

// TestEtcdFlags checks that the flags about etcd have the same meaning as in kube-apiserver.
func TestEtcdFlags(t *testing.T) {
	f := serveFlags{Options: newOptions()}
	cmd := newServe()
	cmd.ResetFlags()
	groupFlags(cmd, f.bind())
	if err := cmd.ParseFlags(strings.Fields("--etcd-servers http://a:2379,http://b:2379 --etcd-cafile ca " +
		"--etcd-certfile c --etcd-keyfile k --etcd-prefix /p")); err != nil {
		t.Fatal(err)
	}
	got := f.Etcd
	if len(got.Servers) != 2 || got.Servers[1] != "http://b:2379" || got.CAFile != "ca" || got.CertFile != "c" ||
		got.KeyFile != "k" || got.Prefix != "/p" {
		t.Errorf("%+v", got)
	}
	if err := f.Complete(cmd.Flags()); err != nil {
		t.Error(err)
	}
	f.Etcd.KeyFile = ""
	if err := f.Complete(cmd.Flags()); err == nil || !strings.Contains(err.Error(), "--etcd-keyfile") {
		t.Errorf("a certificate without a key: %v", err)
	}
}
