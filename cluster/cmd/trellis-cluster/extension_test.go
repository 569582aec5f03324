package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// deployed installs an extension API server as a Deployment, and does with it what its users do.
const deployed = `
trellis extension install wardle-server --group wardle.example.com --version v1alpha1 --image example.com/wardle:1
trellis kubectl -n wardle-server rollout status deployment wardle-server --timeout=80s
trellis kubectl wait apiservice v1alpha1.wardle.example.com --for=condition=Available --timeout=60s
trellis kubectl get flunders.wardle.example.com
printf 'apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: my-first-flunder}\n' | trellis kubectl create -f -
trellis kubectl get flunders.wardle.example.com -o name
cd /
pod=$(trellis kubectl -n wardle-server get pods -o name)
trellis kubectl -n wardle-server get endpointslices -o jsonpath='endpoint {.items[0].endpoints[0].targetRef.name}{"\n"}'
echo expected ${pod#pod/}
trellis kubectl -n wardle-server logs $pod >/dev/null
trellis kubectl -n wardle-server exec $pod -- sh -c 'tr "\\0" " " </proc/1/cmdline; echo'
trellis kubectl -n wardle-server describe $pod
trellis kubectl -n wardle-server delete $pod
trellis kubectl -n wardle-server rollout status deployment wardle-server --timeout=80s
trellis kubectl wait apiservice v1alpha1.wardle.example.com --for=condition=Available --timeout=60s
trellis kubectl -n wardle-server get pods
`

// EXT-009 EXT-010 EXT-021 EXT-022 EXT-024 EXT-025: an extension API server is a Pod of a Deployment, with its certificate from a Secret
// that is mounted as a volume. The main server reaches it by its Service; its log can be read, and commands run beside it; one that is
// deleted is replaced.
func TestExtensionServerIsAPod(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the programs; left out with -short")
	}
	w := whole(t)
	bin := t.TempDir()
	w.build(bin, "./cmd/trellis", "./examples/extension-server")
	w.real(1, "example.com/wardle:1="+bin+"/extension-server")
	c := exec.Command("sh", "-eu", "-c", deployed)
	c.Dir, c.Env = t.TempDir(), append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+w.server.Kubeconfig)
	out, err := c.CombinedOutput()
	said := string(out)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	_, endpoint, _ := strings.Cut(said, "\nendpoint ")
	_, expected, _ := strings.Cut(said, "\nexpected ")
	name, _, _ := strings.Cut(expected, "\n")
	for _, want := range []string{"successfully rolled out", "No resources found", "flunder.wardle.example.com/my-first-flunder", "--tls-cert-file=", "Successfully assigned wardle-server/" + name} {
		if !strings.Contains(said, want) {
			t.Errorf("there is no %q", want)
		}
	}
	if name == "" || !strings.HasPrefix(endpoint, name+"\n") {
		t.Errorf("the Pod is %q", name)
	}
	if t.Failed() {
		t.Log(said)
	}
}
