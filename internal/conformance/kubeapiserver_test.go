package conformance_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// startKubeAPIServer starts kube-apiserver with a separate etcd and blocks until it is ready. Both stop at the end of
// the test. The test is skipped if the programs are missing.
func startKubeAPIServer(t *testing.T, flags ...string) *rest.Config {
	t.Helper()
	program, found := storagetest.Program(t, "kube-apiserver")
	if !found {
		t.Skip("kube-apiserver is missing: run \"make peers\" to build it (see peers/README.md)")
	}
	etcd := storagetest.StartEtcd(t)
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyFile, tokens := filepath.Join(dir, "sa.key"), filepath.Join(dir, "tokens.csv")
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	for name, text := range map[string][]byte{keyFile: pem.EncodeToMemory(block),
		tokens: []byte(`token,kubernetes-admin,,"system:masters"`)} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	_ = listener.Close()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{
		"--etcd-servers=" + etcd.URL, "--bind-address=127.0.0.1", "--secure-port=" + port(address),
		"--cert-dir=" + filepath.Join(dir, "certs"),
		"--token-auth-file=" + tokens, "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + keyFile, "--service-account-signing-key-file=" + keyFile,
		"--allow-privileged", "--enable-priority-and-fairness=false",
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	config := &rest.Config{Host: "https://" + address.String(), BearerToken: "token",
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if err := waitReady(t.Context(), config); err != nil {
		output, _ := os.ReadFile(log.Name())
		t.Fatalf("kube-apiserver does not become ready: %v\n%s", err, output[max(0, len(output)-4000):])
	}
	return config
}

func port(a *net.TCPAddr) string {
	_, p, _ := net.SplitHostPort(a.String())
	return p
}

func waitReady(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			resp, err := client.Get(config.Host + "/readyz")
			if err != nil {
				return false, nil // not listening yet
			}
			return resp.StatusCode == http.StatusOK, resp.Body.Close()
		})
}
