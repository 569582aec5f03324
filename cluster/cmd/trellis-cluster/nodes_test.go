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

// newFullFixture is a server that has all that trellis serve has: nodes get certificates and Pods accounts.
func newFullFixture(t *testing.T, options ...testserver.Option) *fixture {
	all := testserver.With(func(c *apiserver.Config) { c.Controllers, c.Admission.Disable = nil, nil })
	return newFixture(t, 0, append(options, all)...)
}

// newNodesDir is an empty one for nodes, which end with the test.
func (f *fixture) newNodesDir(nodes int) string {
	f.Helper()
	if os.Geteuid() != 0 {
		f.Skip("it needs root, as it has a network for Pods")
	}
	dir, err := os.MkdirTemp("", "up") // a short name: there are sockets in it
	f.must(err)
	f.Cleanup(func() { removeNodesDir(f, dir) })
	f.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "ip", "kube-proxy").Run() }) // if there is one
	for n := range nodes {
		f.Cleanup(func() { f.cleanUpNode(filepath.Join(dir, ".trellis-cluster", fmt.Sprintf("node-%d", n+1), "runtime")) })
	}
	return dir
}

// startNodes starts trellis-cluster up with nodes that run containers.
func (f *fixture) startNodes(nodes int, images ...string) *process {
	f.Helper()
	return startProgram(f.T, "trellis-cluster", f.upArgs(f.newNodesDir(nodes), nodes, images...)...)
}

// upArgs are the arguments of trellis-cluster for that, in a folder of nodes.
func (f *fixture) upArgs(folder string, nodes int, images ...string) []string {
	args := []string{"up", "--kubeconfig=" + f.server.Kubeconfig, "--kube-controller-manager-arg=--secure-port=0",
		"--kube-scheduler-arg=--secure-port=0", "--root-dir=" + filepath.Join(folder, ".trellis-cluster"), fmt.Sprintf("--nodes=%d", nodes)}
	for _, i := range images {
		args = append(args, "--image="+i)
	}
	return args
}

// removeNodesDir removes a folder of nodes, with the volumes that are memory.
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

// cleanUpNode ends what a node has left: containers outlive it.
func (f *fixture) cleanUpNode(folder string) {
	images, err := runtime.NewImages(folder)
	f.must(err)
	lock, err := os.Open(filepath.Join(folder, "lock")) // which the node has as long as it lives
	f.must(err)
	f.must(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	f.must(lock.Close())
	r, err := runtime.New(runtime.Options{Root: folder, Images: images, NodeIP: netip.MustParseAddr("192.0.2.1"), Log: slog.New(slog.DiscardHandler)})
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

// waitForNode returns when a node is.
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

// waitForPod returns a Pod once it runs and is ready.
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

// SCD-006 SCD-007 SCD-008 SCD-012 SCD-013 SCD-017 SCD-018 SCD-020 SCD-033 SCD-035 SCD-036 SCD-037 SCD-039 CRD-035: the documentation's
// scheduler, from its manifest, is a Pod on one of two nodes, is ready by its probes, and places the third Pod, which has waited for it.
// kubectl shows what the documentation expects.
func TestSecondSchedulerPod(t *testing.T) {
	f := newFullFixture(t)
	at := f.newTerminal(t.TempDir())
	f.applyDocument("pod3.yaml")
	f.startNodes(2, "gcr.io/my-gcp-project/my-kube-scheduler:1.0="+program(t, "kube-scheduler"))
	at.waitForTwoNodes()
	for name, file := range map[string]string{"no-annotation": "pod1.yaml", "annotation-default-scheduler": "pod2.yaml"} {
		f.applyDocument(file)
		f.waitForPod("default", name)
	}
	at.expect("kubectl get pods", f.expectedOutput("expect-pending.txt"))

	f.applyScheduler()
	d := waitFor(f, f.AppsV1().Deployments("kube-system"), "my-scheduler", func(d *appsv1.Deployment) bool { return d.Status.ReadyReplicas == 1 })
	if pod := d.Spec.Template; pod.Labels["version"] != "second" || pod.Spec.Containers[0].LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("%+v", pod)
	}
	at.expect("kubectl get pods --namespace=kube-system", f.expectedOutput("expect-scheduler-pod.txt"))
	f.waitForPod("default", "annotation-second-scheduler")
	at.expect("kubectl get events", f.expectedOutput("expect-events.txt"))
	if e := f.waitForEvent("annotation-second-scheduler", "Scheduled"); e.ReportingController != "my-scheduler" {
		t.Errorf("scheduled by %s", e.ReportingController)
	}

	pods := f.CoreV1().Pods("kube-system")
	first := waitFor(f, pods, "", isReady)
	f.must(pods.Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	if next := waitFor(f, pods, "", func(p *corev1.Pod) bool { return p.UID != first.UID && isReady(p) }); !strings.HasPrefix(next.Name, "my-scheduler-") {
		t.Errorf("in its place: %s", next.Name)
	}
}

// expectedOutput is what the documentation says that a command prints.
func (f *fixture) expectedOutput(name string) string {
	f.Helper()
	text, err := os.ReadFile(document(f.T, "12-schedulers/"+name))
	f.must(err)
	return string(text)
}

// EXT-023: a Pod of a network of its own finds the API server, which listens on loopback alone, as any Pod does: by the environment,
// the certificate and the token that it is given. So does one of the host's network. The API server finds the kubelet, which has what
// the Pod has said.
func TestPodReachesServer(t *testing.T) {
	f := newFullFixture(t)
	f.startNodes(1, "busybox=/bin")
	f.checkPodReachesServer("asks")
	f.checkPodReachesServer("asks-on-host", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
}

func (f *fixture) checkPodReachesServer(name string, change ...func(*corev1.Pod)) {
	f.Helper()
	const ask = `d=/var/run/secrets/kubernetes.io/serviceaccount
exec curl -sS --fail --cacert $d/ca.crt -H "Authorization: Bearer $(cat $d/token)" https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1 -o /dev/null -w '%{http_code}'`
	f.createPod(name, append(change, func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = "busybox", []string{"sh", "-c", ask}
	})...)
	p := waitFor(f, f.CoreV1().Pods("default"), name, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	if p.Status.Phase != corev1.PodSucceeded {
		f.Errorf("%+v", p.Status)
	}
	log, err := f.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(f.Context())
	if err != nil || string(log) != "200" {
		f.Errorf("it has said %q, %v", log, err)
	}
}
