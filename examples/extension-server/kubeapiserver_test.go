package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// startKubeAPIServer runs kube-apiserver with a separate etcd until the end of the test. It returns the configuration
// of an administrator's client.
func startKubeAPIServer(t *testing.T) *rest.Config {
	t.Helper()
	program, found := storagetest.Program(t, "kube-apiserver")
	if !found {
		t.Skip("kube-apiserver is not built: run make peers, see peers/README.md")
	}
	etcd := storagetest.StartEtcd(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := pki.Ensure(dir, []string{"127.0.0.1"}, time.Now())
	must(err)
	must(os.WriteFile(file("tokens.csv"), []byte(`token,kubernetes-admin,,"system:masters"`), 0o600))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	port := l.Addr().(*net.TCPAddr).Port
	must(l.Close())
	log, err := os.Create(file("log"))
	must(err)
	cmd := exec.Command(program,
		"--etcd-servers="+etcd.URL, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+
			file("certs"),
		"--token-auth-file="+file("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+file("sa.key"), "--service-account-signing-key-file="+
			file("sa.key"), "--service-cluster-ip-range=10.0.0.0/24",
		"--client-ca-file="+file("ca.crt"), "--requestheader-client-ca-file="+
			file("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file="+file("front-proxy-client.crt"), "--proxy-client-key-file="+
			file("front-proxy-client.key"))
	cmd.Stdout, cmd.Stderr = log, log
	must(cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	config := &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: "token",
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	client, err := rest.HTTPClientFor(config)
	must(err)
	must(wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			resp, err := client.Get(config.Host + "/readyz")
			if err != nil {
				return false, nil // it does not listen yet
			}
			return resp.StatusCode == http.StatusOK, resp.Body.Close()
		}))
	return config
}

// TestBehindKubeAPIServer checks that the example works as an extension server of kube-apiserver. AGG-003, EXT-019
func TestBehindKubeAPIServer(t *testing.T) {
	admin := startKubeAPIServer(t)
	e := prepare(t, admin)
	e.start()
	e.register()
	jane := rest.CopyConfig(admin)
	jane.Impersonate = rest.ImpersonationConfig{UserName: "jane"}
	if status, text := e.get(jane, "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders",
		"application/json"); status != http.StatusForbidden {
		t.Errorf("%d %s", status, text)
	}
	flunders, ctx := e.flunders(admin), t.Context()
	_, err := flunders.Create(ctx, manifest(t, "manifests/flunder.yaml")[0], metav1.CreateOptions{})
	e.must(err)
	o, err := flunders.Get(ctx, "my-first-flunder", metav1.GetOptions{})
	e.must(err)
	if o.GetUID() == "" || o.GetManagedFields() == nil {
		t.Errorf("%v", o.Object)
	}
	e.must(flunders.Delete(ctx, o.GetName(), metav1.DeleteOptions{}))
	list, err := flunders.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%v %v", list, err)
	}
}
