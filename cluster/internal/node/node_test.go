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

// TestNode checks the address, labels, capacity and Lease of a node, and that it has requested one client certificate.
func TestNode(t *testing.T) {
	f := newFixture(t)
	o := f.options("alone")
	o.Labels = map[string]string{"example.com/rack": "4"}
	f.start(o)
	node := f.readyNode("alone")

	if address := net.ParseIP(node.Status.Addresses[0].Address); address == nil || address.IsLoopback() {
		t.Errorf("addresses of the node: %v", node.Status.Addresses)
	}
	if node.Labels["example.com/rack"] != "4" || node.Labels[corev1.LabelHostname] != "alone" {
		t.Errorf("labels of the node: %v", node.Labels)
	}
	capacity, allocatable := node.Status.Capacity, node.Status.Allocatable
	for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourcePods} {
		if q := capacity[r]; q.IsZero() {
			t.Errorf("the node has no %s: %v", r, capacity)
		}
	}
	if reserved := capacity.Memory().Value() - allocatable.Memory().Value(); reserved != 100<<20 {
		t.Errorf("got %d bytes of reserved memory, want 100 MiB", reserved)
	}
	f.eventually("the node renews its Lease", func(ctx context.Context) bool {
		lease, err := f.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "alone", metav1.GetOptions{})
		return err == nil && *lease.Spec.HolderIdentity == "alone"
	})
	if by := f.csrUsers("kubernetes.io/kube-apiserver-client-kubelet"); len(by) != 1 || by[0] != "kubernetes-admin" {
		t.Errorf("the node's certificate was requested by %v", by)
	}
}

// TestKubeletAPI checks that the kubelet's API has a certificate of the cluster's CA, and that the API server
// authenticates and authorizes its users.
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
	get := func(c *http.Client) (status int, body string) {
		response, err := c.Get(url)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		data, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(data)
	}
	f.eventually("the kubelet has a serving certificate", func(context.Context) bool {
		status, _ := get(anonymous)
		return status != 0
	})
	if status, body := get(anonymous); status != http.StatusUnauthorized {
		t.Errorf("without credentials: %d %s", status, body)
	}
	if status, body := get(administrator); status != http.StatusOK || !strings.Contains(body, `"PodList"`) {
		t.Errorf("as administrator: %d %s", status, body)
	}
}

// TestStaticPod checks that a static Pod follows changes of its manifest and ends with it.
// SCD-046
func TestStaticPod(t *testing.T) {
	f := newFixture(t)
	o := f.options("static")
	o.StaticPods = filepath.Join(o.Root, "manifests")
	f.start(o)
	f.readyNode("static")
	write := func(argument string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: main}\nspec: {containers: [{name: main, image: " +
			"'example.com/main:1', args: [" + argument + "]}]}\n"
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
		t.Errorf("not a mirror Pod of the node: %v", first.ObjectMeta)
	}
	write("two")
	f.eventually("the changed manifest is applied", func(ctx context.Context) bool {
		pod, err := f.kube.CoreV1().Pods("default").Get(ctx, "main-static", metav1.GetOptions{})
		return err == nil && pod.UID != first.UID && pod.Spec.Containers[0].Args[0] == "two" &&
			pod.Status.Phase == corev1.PodRunning && f.runningContainers("main-static") == 1
	})
	if err := os.Remove(filepath.Join(o.StaticPods, "main.yaml")); err != nil {
		t.Fatal(err)
	}
	f.eventually("the Pod ends with its manifest", func(ctx context.Context) bool {
		_, err := f.kube.CoreV1().Pods("default").Get(ctx, "main-static", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && f.runningContainers("main-static") == 0
	})
}

// TestRestart checks that Pods continue when their node is killed, and that the next node adopts them without a
// restart. Pods that were deleted in between end.
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
	f.createPod("again", "comes") // the node handles a new Pod after the existing ones
	f.runningPod("comes")
	after := f.runningPod("stays")
	if a, b := after.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID ||
		a.RestartCount != 0 || !a.State.Running.StartedAt.Equal(&b.State.Running.StartedAt) {
		t.Errorf("the container changed from %v to %v", b, a)
	}
	if n := len(f.configsOf(before)); n != 1 {
		t.Errorf("the container was created %d times, want once", n)
	}

	if n := f.csrUsers("kubernetes.io/kube-apiserver-client-kubelet"); len(n) != 1 {
		t.Errorf("the node has requested a certificate %d times, want once", len(n))
	}
	node.stop()
	if f.runningContainers("stays") != 1 {
		t.Error("the Pod ends with its node")
	}
}

// TestTwoNodes checks that two nodes on one host have different ports.
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
		t.Errorf("got the ports %v, want two", ports)
	}
}

// TestResize checks that a resize of a Pod without a cgroup changes its containers.
func TestResize(t *testing.T) {
	f := newFixture(t)
	f.start(f.options("resize"))
	f.readyNode("resize")
	f.createPod("resize", "main", func(s *corev1.PodSpec) {
		s.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"),
			corev1.ResourceMemory: resource.MustParse("64Mi")}
	})
	f.runningPod("main")
	larger := []byte(`{"spec": {"containers": [
		{"name": "main", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}}]}}`)
	_, err := f.kube.CoreV1().Pods("default").Patch(t.Context(), "main", types.StrategicMergePatchType, larger,
		metav1.PatchOptions{}, "resize")
	if err != nil {
		t.Fatal(err)
	}
	f.eventually("the container is updated", func(context.Context) bool {
		return slices.Contains(f.RuntimeService.GetCalls(), "UpdateContainerResources")
	})
	f.createPod("resize", "next")
	f.runningPod("next")
}

// TestKubernetesService checks that containers have the address of Options.KubernetesService in their environment,
// unless the Pod sets the variable.
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
			t.Errorf("%s: the API server is at %s:%s, want %s", pod, env["KUBERNETES_SERVICE_HOST"],
				env["KUBERNETES_SERVICE_PORT"], want)
		}
	}
}

// TestRootless checks a node of another user than root, in a user namespace. It stores secrets in files that only this
// user can read, and ends with the process that started it.
func TestRootless(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to start a process of another user")
	}
	const nobody = 65534
	f := newFixture(t)
	o := f.options("rootless")
	var err error
	if o.Port, err = freePort(); err != nil {
		t.Fatal(err)
	}
	o.Kubeconfig = filepath.Join(o.Root, "kubeconfig")
	var config, executable []byte
	if config, err = os.ReadFile(f.server.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	if executable, err = os.ReadFile("/proc/self/exe"); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(o.Root, "program") // the user may not read the folder of the test program
	for name, data := range map[string][]byte{o.Kubeconfig: config, program: executable} {
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
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != nobody || info.Mode().Perm() != 0o700 || isTmpfs(t, token) {
		t.Errorf("the folder of the token belongs to user %d, with mode %v", stat.Uid, info.Mode())
	}
	if data, err := os.ReadFile(filepath.Join(token, "token")); err != nil || len(data) == 0 {
		t.Errorf("the token: %v", err)
	}
	p.stop()

	p = start()
	f.eventually("the node listens again", func(context.Context) bool { return isListening(node) })
	p.kill()
	f.eventually("the node ends with the process that started it",
		func(context.Context) bool { return !isListening(node) })
}

// kubeletAddress returns the address of the kubelet of a node.
func kubeletAddress(node *corev1.Node) string {
	return net.JoinHostPort(node.Status.Addresses[0].Address,
		strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)))
}

// isListening reports whether the kubelet of a node accepts connections.
func isListening(node *corev1.Node) bool {
	c, err := net.Dial("tcp", kubeletAddress(node))
	if err == nil {
		c.Close()
	}
	return err == nil
}
