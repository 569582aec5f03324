package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/cluster/internal/runtime"
	"github.com/trellis-k8s/trellis/testserver"
)

// newFullFixture starts a server with the controllers and admission plugins of trellis serve, and without simulated
// nodes. The controllers sign certificates of nodes and create service accounts.
func newFullFixture(t *testing.T, options ...testserver.Option) *fixture {
	all := testserver.With(func(c *apiserver.Config) { c.Controllers, c.Admission.Disable = nil, nil })
	return newFixture(t, 0, append(options, all)...)
}

// newNodesDir returns a new folder for nodes. When the test ends, the containers and bridges of these nodes and the
// rules of kube-proxy are removed. Without root, newNodesDir skips the test.
func (f *fixture) newNodesDir(nodes int) string {
	f.Helper()
	if os.Geteuid() != 0 {
		f.Skip("it creates a network for Pods: run the tests as root")
	}
	dir, err := os.MkdirTemp("", "up") // the path must be short, because it contains sockets
	f.must(err)
	f.Cleanup(func() { removeNodesDir(f, dir) })
	// nft fails if the table does not exist
	f.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "ip", "kube-proxy").Run() })
	for n := range nodes {
		name := fmt.Sprintf("node-%d", n+1)
		f.Cleanup(func() {
			f.cleanUpNode(filepath.Join(dir, ".trellis-cluster", name, "runtime"))
		})
	}
	return dir
}

// startNodes starts trellis-cluster up with nodes that run containers in a new folder.
func (f *fixture) startNodes(nodes int, images ...string) *process {
	f.Helper()
	return startProgram(f.T, "trellis-cluster", f.upArgs(f.newNodesDir(nodes), nodes, images...)...)
}

// upArgs returns the arguments of `trellis-cluster up` for nodes in a folder from newNodesDir.
func (f *fixture) upArgs(folder string, nodes int, images ...string) []string {
	args := []string{"up", "--kubeconfig=" + f.server.Kubeconfig, "--kube-controller-manager-arg=--secure-port=0",
		"--kube-scheduler-arg=--secure-port=0", "--root-dir=" +
			filepath.Join(folder, ".trellis-cluster"), fmt.Sprintf("--nodes=%d", nodes)}
	for _, i := range images {
		args = append(args, "--image="+i)
	}
	return args
}

// removeNodesDir unmounts all file systems below a folder of nodes, and removes the folder.
func removeNodesDir(f *fixture, dir string) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	f.must(err)
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") {
			f.must(syscall.Unmount(at, 0))
		}
	}
	f.must(os.RemoveAll(dir))
}

// cleanUpNode removes the Pods and the bridge that a node leaves when it exits.
func (f *fixture) cleanUpNode(folder string) {
	images, err := runtime.NewImages(folder)
	f.must(err)
	lock, err := os.Open(filepath.Join(folder, "lock")) // the node holds the lock until it exits
	f.must(err)
	f.must(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	f.must(lock.Close())
	r, err := runtime.New(runtime.Options{Root: folder, Images: images, NodeIP: netip.MustParseAddr("192.0.2.1"),
		Log: slog.New(slog.DiscardHandler)})
	f.must(err)
	ctx := context.Background()
	defer r.Close(ctx)
	pods, err := r.ListPodSandbox(ctx, nil)
	f.must(err)
	for _, p := range pods {
		if err := r.RemovePodSandbox(ctx, p.Id); err != nil {
			f.Error(err)
		}
	}
	link, err := netlink.LinkByName(r.Bridge())
	f.must(err)
	f.must(netlink.LinkDel(link))
}

// waitForNode waits until a node is ready.
func (f *fixture) waitForNode(name string) {
	f.Helper()
	waitFor(f, f.CoreV1().Nodes(), name, func(n *corev1.Node) bool {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	})
}

// waitForPod waits until a Pod is running and ready, and returns it.
func (f *fixture) waitForPod(namespace, name string) *corev1.Pod {
	f.Helper()
	return waitFor(f, f.CoreV1().Pods(namespace), name, isReady)
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil
		}
	}
	return false
}

// TestSecondSchedulerPod checks that the documentation's second scheduler runs as a Pod on one of two nodes, and that
// its probes succeed. It checks that this scheduler binds the third Pod of the documentation, and that kubectl prints
// the documented output. SCD-006 SCD-007 SCD-008 SCD-012 SCD-013 SCD-017 SCD-018 SCD-020 SCD-033 SCD-035 SCD-036
// SCD-037 SCD-039 CRD-035
func TestSecondSchedulerPod(t *testing.T) {
	f := newFullFixture(t)
	at := f.newTerminal(t.TempDir())
	f.applyDocument("pod3.yaml")
	f.startNodes(2, "gcr.io/my-gcp-project/my-kube-scheduler:1.0="+program(t, "kube-scheduler"))
	at.waitForTwoNodes()
	for name, file := range map[string]string{"no-annotation": "pod1.yaml",
		"annotation-default-scheduler": "pod2.yaml"} {
		f.applyDocument(file)
		f.waitForPod("default", name)
	}
	at.expect("kubectl get pods", f.expectedOutput("expect-pending.txt"))

	f.applyScheduler()
	d := waitFor(f, f.AppsV1().Deployments("kube-system"), "my-scheduler",
		func(d *appsv1.Deployment) bool { return d.Status.ReadyReplicas == 1 })
	if pod := d.Spec.Template; pod.Labels["version"] != "second" ||
		pod.Spec.Containers[0].LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("%+v", pod)
	}
	at.expect("kubectl get pods --namespace=kube-system", f.expectedOutput("expect-scheduler-pod.txt"))
	f.waitForPod("default", "annotation-second-scheduler")
	at.expect("kubectl get events", f.expectedOutput("expect-events.txt"))
	if e := f.waitForEvent("annotation-second-scheduler", "Scheduled"); e.ReportingController != "my-scheduler" {
		t.Errorf("got an event of %s, want my-scheduler", e.ReportingController)
	}

	pods := f.CoreV1().Pods("kube-system")
	first := waitFor(f, pods, "", isReady)
	f.must(pods.Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	if next := waitFor(f, pods, "", func(p *corev1.Pod) bool {
		return p.UID != first.UID &&
			isReady(p)
	}); !strings.HasPrefix(next.Name, "my-scheduler-") {
		t.Errorf("got Pod %s in place of the deleted one, want my-scheduler-...", next.Name)
	}
}

// expectedOutput returns the output that the documentation shows for a command.
func (f *fixture) expectedOutput(name string) string {
	f.Helper()
	text, err := os.ReadFile(document(f.T, "12-schedulers/"+name))
	f.must(err)
	return string(text)
}

// TestPodReachesServer checks that Pods reach an API server that listens only on loopback. One Pod has a separate
// network, and the other one uses the host's network. Both use the address, the CA certificate and the token that the
// node provides. The test also checks that the API server can read the logs of Pods from the kubelet. EXT-023
func TestPodReachesServer(t *testing.T) {
	f := newFullFixture(t)
	f.startNodes(1, "busybox=/bin")
	f.checkPodReachesServer("client")
	f.checkPodReachesServer("client-on-host", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
}

// checkPodReachesServer creates a Pod that sends a request to the API server. It checks that the Pod logs the status
// 200 of the response.
func (f *fixture) checkPodReachesServer(name string, change ...func(*corev1.Pod)) {
	f.Helper()
	const request = `d=/var/run/secrets/kubernetes.io/serviceaccount
exec curl -sS --fail --cacert $d/ca.crt -H "Authorization: Bearer $(cat $d/token)" -o /dev/null -w '%{http_code}' \
	https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1`
	f.createPod(name, append(change, func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = "busybox", []string{"sh", "-c", request}
	})...)
	p := waitFor(f, f.CoreV1().Pods("default"), name, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	if p.Status.Phase != corev1.PodSucceeded {
		f.Errorf("%+v", p.Status)
	}
	log, err := f.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(f.Context())
	if err != nil || string(log) != "200" {
		f.Errorf("got log %q, error %v; want 200", log, err)
	}
}
