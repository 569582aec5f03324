package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/trellis-k8s/trellis/testserver"
)

// example returns the path of a file of the documentation where it stands beside this checkout. Else it returns the
// file of that name in testdata/documents, which does the same in other words. The files use fixed ports and paths, so
// a test runs in a network and with mounts of its own.
func example(t *testing.T, name string) string {
	t.Helper()
	for _, folder := range []string{"../../../shared/spec/examples", "testdata/documents"} {
		if file := filepath.Join(folder, name); exists(file) {
			return file
		}
	}
	t.Fatalf("there is no document %s", name)
	return ""
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// untilProxy is a sleep that lasts until the proxy is there, on however slow a machine.
const untilProxy = `#!/bin/sh
exec timeout 60 sh -c 'until curl -s -o /dev/null http://127.0.0.1:8080/api; do /bin/sleep 0.1; done'
`

// HPX-001 HPX-002 HPX-003 HPX-004 HPX-005: the commands of the documentation say what it says that they do.
func TestExampleOfHTTPProxy(t *testing.T) {
	commands := example(t, "13-http-proxy/commands.sh")
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	want, err := os.ReadFile(example(t, "13-http-proxy/expect-api.json"))
	if err != nil {
		t.Fatal(err)
	}
	server := testserver.Start(t)
	cmd := exec.CommandContext(t.Context(), "sh", commands)
	bin := kubectlDir(t)
	if err := os.WriteFile(filepath.Join(bin, "sleep"), []byte(untilProxy), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "KUBECONFIG="+server.Kubeconfig, "HOME="+t.TempDir(),
		"PATH="+bin+":"+os.Getenv("PATH"), "no_proxy=*")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	address := regexp.MustCompile(`"serverAddress": "[^"]+"`)
	api := address.ReplaceAllString(string(want), `"serverAddress": "`+
		strings.TrimPrefix(server.Config.Host, "https://")+`"`)
	for _, said := range []string{"deployment.apps/hello-app created\n", "Starting to serve on 127.0.0.1:8080\n", api,
		"{\n  \"kind\": \"PodList\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {\n    \"resourceVersion\": \""} {
		if !strings.Contains(string(out), said) {
			t.Errorf("%s\nit does not say\n%s", out, said)
		}
	}
}

// KON-002 KON-004 KON-008 KON-051: the documentation's EgressSelectorConfiguration over TCP leads to a tunnel server by
// HTTP CONNECT and mTLS.
func TestExampleOfTunnelOverTCP(t *testing.T) {
	config, err := filepath.Abs(example(t, "15-konnectivity/egress-selector-configuration-tcp.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	f := newFront(t, transport{"HTTPConnect", false}, kubectlDir(t), func(t *testing.T, _, ca string) string {
		hasKeys(t, filepath.Dir(ca))
		return frontTrellis(t, config, ca)
	})
	f.at = "127.0.0.1:8131"
	f.through(t, ours, ours)
}

// hasKeys has the keys of a folder lie where the documentation's file has them.
func hasKeys(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", "/etc", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	const pki = "/etc/kubernetes/pki/konnectivity-"
	if err := os.MkdirAll(filepath.Dir(pki), 0o700); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"ca.crt": "ca.crt", "admin.crt": "client.crt", "admin.key": "client.key"} {
		data, err := os.ReadFile(filepath.Join(dir, from))
		if err == nil {
			err = os.WriteFile(pki+to, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
