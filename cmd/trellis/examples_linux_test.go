package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/testserver"
)

// example returns the path of an example file of the Kubernetes documentation if the documentation is stored beside
// this checkout. Otherwise it returns the path of an equivalent file in testdata/documents. The files contain fixed
// ports and paths. So their tests run in a separate network namespace with separate mounts.
func example(t *testing.T, name string) string {
	t.Helper()
	for _, folder := range []string{outside.Path("spec/examples"), "testdata/documents"} {
		if file := filepath.Join(folder, name); exists(file) {
			return file
		}
	}
	t.Fatalf("no document %s", name)
	return ""
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// untilProxy replaces the program sleep in the commands. It waits until the proxy is reachable, even on a slow
// machine.
const untilProxy = `#!/bin/sh
exec timeout 60 sh -c 'until curl -s -o /dev/null http://127.0.0.1:8080/api; do /bin/sleep 0.1; done'
`

// TestHTTPProxyExample checks that the commands of the documentation print the documented output.
// HPX-001 HPX-002 HPX-003 HPX-004 HPX-005
func TestHTTPProxyExample(t *testing.T) {
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
	shadowed := t.TempDir()
	if err := os.WriteFile(filepath.Join(shadowed, "sleep"), []byte(untilProxy), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "KUBECONFIG="+server.Kubeconfig, "HOME="+t.TempDir(),
		"PATH="+shadowed+":"+kubectlDir(t)+":"+os.Getenv("PATH"), "no_proxy=*")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	address := regexp.MustCompile(`"serverAddress": "[^"]+"`)
	api := address.ReplaceAllString(string(want), `"serverAddress": "`+
		strings.TrimPrefix(server.Config.Host, "https://")+`"`)
	for _, want := range []string{"deployment.apps/hello-app created\n", "Starting to serve on 127.0.0.1:8080\n", api,
		"{\n  \"kind\": \"PodList\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {\n    \"resourceVersion\": \""} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output\n%s\ndoes not contain\n%s", out, want)
		}
	}
}

// TestTunnelOverTCPExample checks that the documentation's EgressSelectorConfiguration over TCP connects to a tunnel
// server with HTTP CONNECT and mTLS.
// KON-002 KON-004 KON-008 KON-051
func TestTunnelOverTCPExample(t *testing.T) {
	config, err := filepath.Abs(example(t, "15-konnectivity/egress-selector-configuration-tcp.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	f := newFrontend(t, transport{"HTTPConnect", false}, kubectlDir(t), func(t *testing.T, _, ca string) string {
		mountKeys(t, filepath.Dir(ca))
		return startTrellis(t, config, ca)
	})
	f.tunnelAddress = "127.0.0.1:8131"
	f.checkTunnel(t, trellis, trellis)
}

// mountKeys copies the keys in a folder to the paths that the example file contains.
func mountKeys(t *testing.T, dir string) {
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
