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

// whole is a server that has all that trellis serve has: nodes get certificates and Pods accounts.
func whole(t *testing.T, options ...testserver.Option) *world {
	all := testserver.With(func(c *apiserver.Config) { c.Controllers, c.Admission.Disable = nil, nil })
	return newWorld(t, 0, append(options, all)...)
}

// folder is an empty one for nodes, which end with the test.
func (w *world) folder(nodes int) string {
	w.Helper()
	if os.Geteuid() != 0 {
		w.Skip("it needs root, as it has a network for Pods")
	}
	dir, err := os.MkdirTemp("", "up") // a short name: there are sockets in it
	w.must(err)
	w.Cleanup(func() { remove(w, dir) })
	w.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "ip", "kube-proxy").Run() }) // if there is one
	for n := range nodes {
		w.Cleanup(func() { w.end(filepath.Join(dir, ".trellis-cluster", fmt.Sprintf("node-%d", n+1), "runtime")) })
	}
	return dir
}

// real starts trellis-cluster up with nodes that run containers.
func (w *world) real(nodes int, images ...string) *process {
	w.Helper()
	return begin(w.T, "trellis-cluster", w.upWith(w.folder(nodes), nodes, images...)...)
}

// upWith are the arguments of trellis-cluster for that, in a folder of nodes.
func (w *world) upWith(folder string, nodes int, images ...string) []string {
	args := []string{"up", "--kubeconfig=" + w.server.Kubeconfig, "--kube-controller-manager-arg=--secure-port=0",
		"--kube-scheduler-arg=--secure-port=0", "--root-dir=" + filepath.Join(folder, ".trellis-cluster"), fmt.Sprintf("--nodes=%d", nodes)}
	for _, i := range images {
		args = append(args, "--image="+i)
	}
	return args
}

// remove removes a folder of nodes, with the volumes that are memory.
func remove(w *world, dir string) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	w.must(err)
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") {
			w.must(syscall.Unmount(at, 0))
		}
	}
	w.must(os.RemoveAll(dir))
}

// end ends what a node has left: containers outlive it.
func (w *world) end(folder string) {
	images, err := runtime.NewImages(folder)
	w.must(err)
	lock, err := os.Open(filepath.Join(folder, "lock")) // which the node has as long as it lives
	w.must(err)
	w.must(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	w.must(lock.Close())
	r, err := runtime.New(runtime.Options{Root: folder, Images: images, NodeIP: netip.MustParseAddr("192.0.2.1"), Log: slog.New(slog.DiscardHandler)})
	w.must(err)
	ctx := context.Background()
	defer r.Close(ctx)
	pods, err := r.ListPodSandbox(ctx, nil)
	w.must(err)
	for _, p := range pods {
		if err := r.RemovePodSandbox(ctx, p.Id); err != nil {
			w.Error(err)
		}
	}
	link, err := netlink.LinkByName(r.Bridge())
	w.must(err)
	w.must(netlink.LinkDel(link))
}

// nodeReady returns when a node is.
func (w *world) nodeReady(name string) {
	w.Helper()
	until(w, w.CoreV1().Nodes(), name, func(n *corev1.Node) bool {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	})
}

// running returns a Pod once it runs and is ready.
func (w *world) running(namespace, name string) *corev1.Pod {
	w.Helper()
	return until(w, w.CoreV1().Pods(namespace), name, isReady)
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
func TestSecondSchedulerIsAPod(t *testing.T) {
	w := whole(t)
	at := w.terminal(t.TempDir())
	w.apply("pod3.yaml")
	w.real(2, "gcr.io/my-gcp-project/my-kube-scheduler:1.0="+program(t, "kube-scheduler"))
	at.twoNodes()
	for name, file := range map[string]string{"no-annotation": "pod1.yaml", "annotation-default-scheduler": "pod2.yaml"} {
		w.apply(file)
		w.running("default", name)
	}
	at.shows("kubectl get pods", w.expected("expect-pending.txt"))

	w.applyScheduler()
	d := until(w, w.AppsV1().Deployments("kube-system"), "my-scheduler", func(d *appsv1.Deployment) bool { return d.Status.ReadyReplicas == 1 })
	if pod := d.Spec.Template; pod.Labels["version"] != "second" || pod.Spec.Containers[0].LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("%+v", pod)
	}
	at.shows("kubectl get pods --namespace=kube-system", w.expected("expect-scheduler-pod.txt"))
	w.running("default", "annotation-second-scheduler")
	at.shows("kubectl get events", w.expected("expect-events.txt"))
	if e := w.event("annotation-second-scheduler", "Scheduled"); e.ReportingController != "my-scheduler" {
		t.Errorf("scheduled by %s", e.ReportingController)
	}

	pods := w.CoreV1().Pods("kube-system")
	first := until(w, pods, "", isReady)
	w.must(pods.Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	if next := until(w, pods, "", func(p *corev1.Pod) bool { return p.UID != first.UID && isReady(p) }); !strings.HasPrefix(next.Name, "my-scheduler-") {
		t.Errorf("in its place: %s", next.Name)
	}
}

// expected is what the documentation says that a command prints.
func (w *world) expected(name string) string {
	w.Helper()
	text, err := os.ReadFile(document(w.T, "12-schedulers/"+name))
	w.must(err)
	return string(text)
}

// EXT-023: a Pod of a network of its own finds the API server, which listens on loopback alone, as any Pod does: by the environment,
// the certificate and the token that it is given. So does one of the host's network. The API server finds the kubelet, which has what
// the Pod has said.
func TestPodFindsTheServer(t *testing.T) {
	w := whole(t)
	w.real(1, "busybox=/bin")
	w.findsTheServer("asks")
	w.findsTheServer("asks-on-host", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
}

func (w *world) findsTheServer(name string, change ...func(*corev1.Pod)) {
	w.Helper()
	const ask = `d=/var/run/secrets/kubernetes.io/serviceaccount
exec curl -sS --fail --cacert $d/ca.crt -H "Authorization: Bearer $(cat $d/token)" https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1 -o /dev/null -w '%{http_code}'`
	w.pod(name, append(change, func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = "busybox", []string{"sh", "-c", ask}
	})...)
	p := until(w, w.CoreV1().Pods("default"), name, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	if p.Status.Phase != corev1.PodSucceeded {
		w.Errorf("%+v", p.Status)
	}
	log, err := w.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(w.Context())
	if err != nil || string(log) != "200" {
		w.Errorf("it has said %q, %v", log, err)
	}
}
