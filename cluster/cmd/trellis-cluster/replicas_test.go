package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/fixture/replicas"
	"github.com/trellis-k8s/trellis/testserver"
)

// replicasNetwork begins the addresses of the load balancer and the servers in TestKilledReplicas.
const replicasNetwork = "10.1.0."

// jobScript sends requests to the API server for 5 seconds, through the address of the Service kubernetes. It fails if
// there is no response for a minute.
const jobScript = `d=/var/run/secrets/kubernetes.io/serviceaccount
for i in 1 2 3 4 5; do
	curl -sS --fail --retry 120 --retry-delay 1 --retry-all-errors --retry-max-time 60 --connect-timeout 2 \
		--cacert $d/ca.crt -H "Authorization: Bearer $(cat $d/token)" -o /dev/null \
		https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1 || exit 1
	sleep 1
done`

// TestKilledReplicas checks that the cluster works on three servers behind a load balancer while one after the other is
// killed. Nodes stay ready, Pods keep their processes, and Jobs complete without failed Pods.
func TestKilledReplicas(t *testing.T) {
	f := &fixture{T: t}
	lo, err := netlink.LinkByName("lo")
	f.must(err)
	for i := range 4 {
		ip := net.ParseIP(fmt.Sprint(replicasNetwork, 10+i))
		a := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)}}
		f.must(netlink.AddrAdd(lo, a))
		t.Cleanup(func() { _ = netlink.AddrDel(lo, a) })
	}
	build := func() string {
		dir := f.TempDir()
		f.buildPrograms(dir, "./cmd/trellis")
		return filepath.Join(dir, "trellis")
	}
	servers := replicas.Start(t, build, replicasNetwork)
	dir := f.newNodesDir(2)
	f.Interface = kubernetes.NewForConfigOrDie(servers.Config)
	f.server = &testserver.Server{Kubeconfig: servers.Kubeconfig, Config: servers.Config}
	up := startProgram(t, "trellis-cluster", f.upArgs(dir, 2, "busybox=/bin")...)
	for _, node := range []string{"node-1", "node-2"} {
		f.waitForNode(node)
		// The controller does not retry the removal of the taint not-ready, so no server may be killed before. The
		// removal would follow with the next change of the node's status, up to 5 minutes later.
		waitFor(f, f.CoreV1().Nodes(), node, func(n *corev1.Node) bool { return len(n.Spec.Taints) == 0 })
	}
	ready := f.readySince()

	stop := servers.KillInTurn()
	f.createWeb(4)
	f.eventually("4 Pods run", func() error { return f.checkWeb(4) })
	before := f.webPods()
	for i := range 2 {
		f.runJob(fmt.Sprint("sum-", i))
	}
	f.scaleWeb(6)
	f.eventually("6 Pods run", func() error { return f.checkWeb(6) })
	stop()

	f.must(f.checkWeb(6))
	after := f.webPods()
	for _, uid := range before {
		if !slices.Contains(after, uid) {
			t.Errorf("the Pod with UID %s has been deleted", uid)
		}
	}
	if now := f.readySince(); fmt.Sprint(now) != fmt.Sprint(ready) {
		t.Errorf("the nodes are ready since %v, before the kills %v", now, ready)
	}
	select {
	case <-up.ended:
		t.Error("trellis-cluster up has ended")
	default:
	}
}

// eventually waits until a condition returns nil. It may take longer than testTimeout, because a new leader of the
// server's controllers follows a killed one after 20 seconds.
func (f *fixture) eventually(what string, condition func() error) {
	f.Helper()
	last := error(nil)
	err := wait.PollUntilContextTimeout(f.Context(), 100*time.Millisecond, 2*testTimeout, true,
		func(context.Context) (bool, error) {
			last = condition()
			return last == nil, nil
		})
	if err != nil {
		f.Fatalf("%s: %v: %v", what, err, last)
	}
}

// readySince returns the times at which the nodes have become ready.
func (f *fixture) readySince() map[string]metav1.Time {
	f.Helper()
	nodes, err := f.CoreV1().Nodes().List(f.Context(), metav1.ListOptions{})
	f.must(err)
	since := map[string]metav1.Time{}
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				since[n.Name] = c.LastTransitionTime
			}
		}
	}
	return since
}

func scriptTemplate(name string, policy corev1.RestartPolicy, script string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{RestartPolicy: policy, Containers: []corev1.Container{{
			Name: "a", Image: "busybox", Command: []string{"sh", "-c", script}}}}}
}

// createWeb creates the Deployment web. The clients repeat requests, so it may exist.
func (f *fixture) createWeb(n int32) {
	f.Helper()
	_, err := f.AppsV1().Deployments("default").Create(f.Context(), &appsv1.Deployment{ObjectMeta: objectMeta("web"),
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(n), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: scriptTemplate("web", corev1.RestartPolicyAlways, "exec sleep 1000000"),
		}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		f.must(err)
	}
}

func (f *fixture) scaleWeb(n int32) {
	f.Helper()
	_, err := f.AppsV1().Deployments("default").Patch(f.Context(), "web", types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n), metav1.PatchOptions{})
	f.must(err)
}

// checkWeb checks that the Deployment web has n Pods that are ready and whose containers have never been restarted.
func (f *fixture) checkWeb(n int) error {
	pods, err := f.CoreV1().Pods("default").List(f.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if !isReady(&p) || p.Status.ContainerStatuses[0].RestartCount > 0 {
			return fmt.Errorf("%s: %+v", p.Name, p.Status)
		}
	}
	if len(pods.Items) != n {
		return fmt.Errorf("%d Pods, want %d", len(pods.Items), n)
	}
	return nil
}

// webPods returns the UIDs of the Pods of the Deployment web.
func (f *fixture) webPods() (uids []types.UID) {
	f.Helper()
	pods, err := f.CoreV1().Pods("default").List(f.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	f.must(err)
	for _, p := range pods.Items {
		uids = append(uids, p.UID)
	}
	return uids
}

// runJob runs a Job of four Pods, and checks that each of them has succeeded.
func (f *fixture) runJob(name string) {
	f.Helper()
	const completions = 4
	jobs := f.BatchV1().Jobs("default")
	_, err := jobs.Create(f.Context(), &batchv1.Job{ObjectMeta: objectMeta(name), Spec: batchv1.JobSpec{
		Completions: ptr.To[int32](completions), Parallelism: ptr.To[int32](2), BackoffLimit: ptr.To[int32](0),
		Template: scriptTemplate(name, corev1.RestartPolicyNever, jobScript),
	}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		f.must(err)
	}
	status := batchv1.JobStatus{}
	f.eventually(name+" completes", func() error {
		j, err := jobs.Get(f.Context(), name, metav1.GetOptions{})
		if err == nil {
			status = j.Status
		}
		if err == nil && status.CompletionTime == nil && status.Failed == 0 {
			err = fmt.Errorf("%+v", status)
		}
		return err
	})
	pods, err := f.CoreV1().Pods("default").List(f.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	f.must(err)
	if status.Succeeded != completions || len(pods.Items) != completions {
		f.Errorf("%s has %d Pods and the status %+v", name, len(pods.Items), status)
	}
}
