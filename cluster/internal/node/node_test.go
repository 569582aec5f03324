package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// A node has an address that others reach, a Lease, and room; its identity is its own, whoever has started it.
func TestNode(t *testing.T) {
	f := newFixture(t)
	o := f.options("alone")
	o.Labels = map[string]string{"example.com/rack": "4"}
	f.start(o)
	node := f.readyNode("alone")

	if address := net.ParseIP(node.Status.Addresses[0].Address); address == nil || address.IsLoopback() {
		t.Errorf("its addresses are %v", node.Status.Addresses)
	}
	if node.Labels["example.com/rack"] != "4" || node.Labels[corev1.LabelHostname] != "alone" {
		t.Errorf("its labels are %v", node.Labels)
	}
	capacity, allocatable := node.Status.Capacity, node.Status.Allocatable
	for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		if q := capacity[r]; q.IsZero() {
			t.Errorf("it has no %s: %v", r, capacity)
		}
	}
	if reserved := capacity.Memory().Value() - allocatable.Memory().Value(); reserved != 100<<20 {
		t.Errorf("it keeps %d bytes of its memory, want 100 MiB", reserved)
	}
	f.eventually("it renews a lease", func(ctx context.Context) bool {
		lease, err := f.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "alone", metav1.GetOptions{})
		return err == nil && *lease.Spec.HolderIdentity == "alone"
	})
	if by := f.csrUsers("kubernetes.io/kube-apiserver-client-kubelet"); len(by) != 1 || by[0] != "kubernetes-admin" {
		t.Errorf("the node's certificate was asked for by %v", by)
	}
}

// The kubelet's API has a certificate of the cluster's CA, and asks the API server who may use it.
func TestKubeletAPI(t *testing.T) {
	f := newFixture(t)
	f.start(f.options("served"))
	node := f.readyNode("served")
	url := "https://" + kubeletAddress(node) + "/pods"

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(f.server.Config.CAData)
	anonymous := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	administrator, err := rest.HTTPClientFor(f.server.Config)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(c *http.Client) (status int, body string) {
		response, err := c.Get(url)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		data, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(data)
	}
	f.eventually("the kubelet has a certificate of the cluster's", func(context.Context) bool { status, _ := ask(anonymous); return status != 0 })
	if status, body := ask(anonymous); status != http.StatusUnauthorized {
		t.Errorf("without credentials: %d %s", status, body)
	}
	if status, body := ask(administrator); status != http.StatusOK || !strings.Contains(body, `"PodList"`) {
		t.Errorf("as administrator: %d %s", status, body)
	}
}

// SCD-046
func TestStaticPod(t *testing.T) {
	f := newFixture(t)
	o := f.options("static")
	o.StaticPods = filepath.Join(o.Root, "manifests")
	f.start(o)
	f.readyNode("static")
	write := func(argument string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: main}\nspec: {containers: [{name: main, image: 'example.com/main:1', args: [" + argument + "]}]}\n"
		temporary := filepath.Join(o.Root, "main.yaml")
		if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temporary, filepath.Join(o.StaticPods, "main.yaml")); err != nil {
			t.Fatal(err)
		}
	}

	write("one")
	first := f.runningPod("main-static")
	if first.Annotations[corev1.MirrorPodAnnotationKey] == "" || first.OwnerReferences[0].Kind != "Node" {
		t.Errorf("it is no mirror Pod of the node's: %v", first.ObjectMeta)
	}
	write("two")
	f.eventually("the changed manifest is in force", func(ctx context.Context) bool {
		pod, err := f.kube.CoreV1().Pods("default").Get(ctx, "main-static", metav1.GetOptions{})
		return err == nil && pod.UID != first.UID && pod.Spec.Containers[0].Args[0] == "two" && pod.Status.Phase == corev1.PodRunning && f.runningContainers("main-static") == 1
	})
	if err := os.Remove(filepath.Join(o.StaticPods, "main.yaml")); err != nil {
		t.Fatal(err)
	}
	f.eventually("it ends with its manifest", func(ctx context.Context) bool {
		_, err := f.kube.CoreV1().Pods("default").Get(ctx, "main-static", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && f.runningContainers("main-static") == 0
	})
}

// Pods go on when their node is killed, and are taken up when it is back: none is started twice, and those that were deleted
// meanwhile end.
func TestRestart(t *testing.T) {
	f := newFixture(t)
	o := f.options("again")
	node := f.start(o)
	f.readyNode("again")
	f.createPod("again", "stays")
	f.createPod("again", "goes")
	before := f.runningPod("stays")
	f.runningPod("goes")

	node.kill()
	if err := f.kube.CoreV1().Pods("default").Delete(t.Context(), "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	node = f.start(o)
	f.eventually("the deleted Pod ends", func(ctx context.Context) bool {
		_, err := f.kube.CoreV1().Pods("default").Get(ctx, "goes", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && f.runningContainers("goes") == 0
	})
	f.createPod("again", "comes") // what comes now is served after all that there was
	f.runningPod("comes")
	after := f.runningPod("stays")
	if a, b := after.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || a.RestartCount != 0 || !a.State.Running.StartedAt.Equal(&b.State.Running.StartedAt) {
		t.Errorf("its container was %v, and is %v", b, a)
	}
	if n := len(f.configsOf(before)); n != 1 {
		t.Errorf("its container was made %d times", n)
	}

	if n := f.csrUsers("kubernetes.io/kube-apiserver-client-kubelet"); len(n) != 1 {
		t.Errorf("it has asked for a certificate %d times", len(n))
	}
	node.stop()
	if f.runningContainers("stays") != 1 {
		t.Error("a node that ends takes its Pods along")
	}
}

// CRD-035
func TestTwoNodes(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"first", "second"} {
		f.start(f.options(name))
	}
	ports := map[int32]bool{}
	for _, name := range []string{"first", "second"} {
		ports[f.readyNode(name).Status.DaemonEndpoints.KubeletEndpoint.Port] = true
	}
	if len(ports) != 2 {
		t.Errorf("their ports are %v", ports)
	}
}

// A resize reaches the containers, of Pods without cgroups as of others.
func TestResize(t *testing.T) {
	f := newFixture(t)
	f.start(f.options("resize"))
	f.readyNode("resize")
	f.createPod("resize", "main", func(s *corev1.PodSpec) {
		s.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	})
	f.runningPod("main")
	larger := []byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"2"}}}]}}`)
	if _, err := f.kube.CoreV1().Pods("default").Patch(t.Context(), "main", types.StrategicMergePatchType, larger, metav1.PatchOptions{}, "resize"); err != nil {
		t.Fatal(err)
	}
	f.eventually("the container is told", func(context.Context) bool {
		return slices.Contains(f.RuntimeService.GetCalls(), "UpdateContainerResources")
	})
	f.createPod("resize", "next")
	f.runningPod("next")
}

// Pods find the API server where it listens, unless they have said so themselves.
func TestKubernetesService(t *testing.T) {
	f := newFixture(t)
	o := f.options("env")
	o.KubernetesService = "192.0.2.7:6443"
	f.start(o)
	f.readyNode("env")
	f.createPod("env", "plain")
	f.createPod("env", "own", func(s *corev1.PodSpec) {
		s.Containers[0].Env = []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_HOST", Value: "api.example.com"}}
	})
	for pod, want := range map[string]string{"plain": "192.0.2.7", "own": "api.example.com"} {
		env := map[string]string{}
		for _, v := range f.configsOf(f.runningPod(pod))[0].Envs {
			env[v.Key] = string(v.Value)
		}
		if env["KUBERNETES_SERVICE_HOST"] != want || env["KUBERNETES_SERVICE_PORT"] != "6443" {
			t.Errorf("%s: the API server is at %s:%s, want %s", pod, env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"], want)
		}
	}
}

// Whoever is not root has a node all the same, root of a namespace of its own; it keeps secrets in files, for itself alone.
func TestRootless(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	const nobody = 65534
	f := newFixture(t)
	o := f.options("rootless")
	var err error
	if o.Port, err = freePort(); err != nil {
		t.Fatal(err)
	}
	o.Kubeconfig = filepath.Join(o.Root, "kubeconfig")
	var config, self []byte
	if config, err = os.ReadFile(f.server.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	if self, err = os.ReadFile("/proc/self/exe"); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(o.Root, "program") // where others may not look is the test's own
	for name, data := range map[string][]byte{o.Kubeconfig: config, program: self} {
		if err := os.WriteFile(name, data, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{o.Root, o.Kubeconfig, program} {
		if err := os.Chown(name, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	start := func() *nodeProcess {
		return f.start(o, func(c *exec.Cmd) {
			c.Path, c.Env = program, append(c.Env, spawnVariable+"=1")
			c.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		})
	}
	p := start()
	node := f.readyNode("rootless")
	f.createPod("rootless", "main")
	pod := f.runningPod("main")
	token := hostPath(t, f.configsOf(pod)[0], "/var/run/secrets/kubernetes.io/serviceaccount")
	info, err := os.Stat(token)
	if err != nil {
		t.Fatal(err)
	}
	if of := info.Sys().(*syscall.Stat_t); of.Uid != nobody || info.Mode().Perm() != 0o700 || isTmpfs(t, token) {
		t.Errorf("the token lies in a folder of user %d, %v", of.Uid, info.Mode())
	}
	if data, err := os.ReadFile(filepath.Join(token, "token")); err != nil || len(data) == 0 {
		t.Errorf("the token: %v", err)
	}
	p.stop()

	p = start()
	f.eventually("it is back", func(context.Context) bool { return isListening(node) })
	p.kill()
	f.eventually("it ends with who has spawned it", func(context.Context) bool { return !isListening(node) })
}

// kubeletAddress is where the kubelet of a node is served.
func kubeletAddress(node *corev1.Node) string {
	return net.JoinHostPort(node.Status.Addresses[0].Address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)))
}

// isListening is true of a node whose kubelet has its port.
func isListening(node *corev1.Node) bool {
	c, err := net.Dial("tcp", kubeletAddress(node))
	if err == nil {
		c.Close()
	}
	return err == nil
}
