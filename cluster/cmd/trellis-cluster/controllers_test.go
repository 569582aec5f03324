package main

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// startUp starts the command `trellis-cluster up` with --nodes=0. The parameter flags contains flags for the
// controllers.
func (f *fixture) startUp(flags ...string) *process {
	f.Helper()
	args := []string{
		"up", "--kubeconfig=" + f.server.Kubeconfig, "--kube-controller-manager-arg=--secure-port=0",
		"--kube-scheduler-arg=--secure-port=0", "--nodes=0",
	}
	for _, flag := range flags {
		args = append(args, "--kube-controller-manager-arg="+flag)
	}
	return startProgram(f.T, "trellis-cluster", args...)
}

var webLabels = map[string]string{"app": "web"}

func podTemplate(change ...func(*corev1.Pod)) corev1.PodTemplateSpec {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: webLabels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	for _, c := range change {
		c(pod)
	}
	return corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
}

// endSuccessfully makes a simulated Pod end with the phase Succeeded.
func endSuccessfully(p *corev1.Pod) {
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	p.Annotations = map[string]string{testserver.OutcomeAnnotation: string(corev1.PodSucceeded)}
}

func objectMeta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// TestUp checks that each kind with a Pod template gets its Pods, that these Pods are bound and run, and that a
// deleted Pod is replaced. It checks how many disruptions a PodDisruptionBudget permits. When `trellis-cluster up` is
// interrupted, it must release all its Leases and exit with code 0. SCD-008
func TestUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 2)
	p := f.startUp()
	ctx, selector := t.Context(), &metav1.LabelSelector{MatchLabels: webLabels}
	deployments := f.AppsV1().Deployments("default")
	_, err := deployments.Create(ctx, &appsv1.Deployment{ObjectMeta: objectMeta("web"),
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: selector, Template: podTemplate()}},
		metav1.CreateOptions{})
	f.must(err)
	waitFor(f, deployments, "web", func(d *appsv1.Deployment) bool { return d.Status.AvailableReplicas == 3 })
	budgets := f.PolicyV1().PodDisruptionBudgets("default")
	_, err = budgets.Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: objectMeta("web"),
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(2)), Selector: selector}},
		metav1.CreateOptions{})
	f.must(err)
	waitFor(f, budgets, "web", func(b *policyv1.PodDisruptionBudget) bool { return b.Status.DisruptionsAllowed == 1 })
	pods, err := f.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	f.must(err)
	f.must(f.CoreV1().Pods("default").Delete(ctx, pods.Items[0].Name, metav1.DeleteOptions{}))
	waitFor(f, f.CoreV1().Pods("default"), "", func(p *corev1.Pod) bool {
		for _, old := range pods.Items {
			if old.Name == p.Name {
				return false
			}
		}
		return p.Status.Phase == corev1.PodRunning
	})

	_, err = f.AppsV1().StatefulSets("default").Create(ctx, &appsv1.StatefulSet{ObjectMeta: objectMeta("set"),
		Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2), Selector: selector, Template: podTemplate()}},
		metav1.CreateOptions{})
	f.must(err)
	waitFor(f, f.AppsV1().StatefulSets("default"), "set",
		func(s *appsv1.StatefulSet) bool { return s.Status.AvailableReplicas == 2 })
	f.waitForBinding("set-1")
	_, err = f.AppsV1().DaemonSets("default").Create(ctx, &appsv1.DaemonSet{ObjectMeta: objectMeta("everywhere"),
		Spec: appsv1.DaemonSetSpec{Selector: selector, Template: podTemplate()}}, metav1.CreateOptions{})
	f.must(err)
	waitFor(f, f.AppsV1().DaemonSets("default"), "everywhere",
		func(d *appsv1.DaemonSet) bool { return d.Status.NumberAvailable == 2 })
	_, err = f.CoreV1().ReplicationControllers("default").Create(ctx,
		&corev1.ReplicationController{ObjectMeta: objectMeta("old"),
			Spec: corev1.ReplicationControllerSpec{Selector: webLabels, Template: ptr.To(podTemplate())}},
		metav1.CreateOptions{})
	f.must(err)
	waitFor(f, f.CoreV1().ReplicationControllers("default"), "old",
		func(r *corev1.ReplicationController) bool { return r.Status.AvailableReplicas == 1 })
	if code := p.interrupt(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, name := range []string{"kube-scheduler", "trellis-cluster-controllers"} {
		l, err := f.CoordinationV1().Leases("kube-system").Get(ctx, name, metav1.GetOptions{})
		if err != nil || *l.Spec.HolderIdentity != "" {
			t.Errorf("Lease %s is not released: %+v, error %v", name, l, err)
		}
	}
}

// TestInvalidFlagsOfParts checks that `trellis-cluster up` prints an error and exits with code 1 if the flags for the
// controllers, the scheduler or the nodes are invalid.
func TestInvalidFlagsOfParts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	for flag, want := range map[string]string{
		"--kube-scheduler-arg=--none":              "unknown flag: --none",
		"--kube-controller-manager-arg=--none":     "unknown flag: --none",
		"--kube-scheduler-arg=--config=/none.yaml": "open /none.yaml: no such file or directory",
		"--pod-cidr=none":                          "--pod-cidr: ",
	} {
		p := startProgram(t, "trellis-cluster", "up", "--kubeconfig="+f.server.Kubeconfig, "--root-dir="+t.TempDir(),
			flag)
		if code := p.wait(); code != 1 || !strings.Contains(p.output(), want) {
			t.Errorf("%s: got exit code %d and\n%s\nwant 1 and %q", flag, code, p.output(), want)
		}
	}
}

// TestJobs checks that a Job completes, and that a CronJob creates a Job when it is due.
func TestJobs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1)
	f.startUp()
	jobs, crons := f.BatchV1().Jobs("default"), f.BatchV1().CronJobs("default")
	spec := batchv1.JobSpec{Completions: ptr.To[int32](2), Template: podTemplate(endSuccessfully)}
	_, err := jobs.Create(t.Context(), &batchv1.Job{ObjectMeta: objectMeta("sum"), Spec: spec}, metav1.CreateOptions{})
	f.must(err)
	complete := func(j *batchv1.Job) bool { return j.Status.Succeeded == 2 && j.Status.CompletionTime != nil }
	waitFor(f, jobs, "sum", complete)
	cron, err := crons.Create(t.Context(), &batchv1.CronJob{ObjectMeta: objectMeta("yearly"), Spec: batchv1.CronJobSpec{
		Schedule: "0 0 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: spec},
	}}, metav1.CreateOptions{})
	f.must(err)
	cron.Status.LastScheduleTime = &metav1.Time{Time: time.Now().AddDate(-1, 0, -1)} // makes it due
	_, err = crons.UpdateStatus(t.Context(), cron, metav1.UpdateOptions{})
	f.must(err)
	waitFor(f, jobs, "", func(j *batchv1.Job) bool { return strings.HasPrefix(j.Name, "yearly-") && complete(j) })
}

// TestUnreachableNode checks that a node without heartbeats gets a taint and that its Pods are evicted.
func TestUnreachableNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1)
	n, err := f.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: objectMeta("silent")},
		metav1.CreateOptions{})
	f.must(err)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastHeartbeatTime: metav1.Now()}}
	_, err = f.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
	f.must(err)
	f.createPod("a", func(p *corev1.Pod) {
		p.Spec.NodeName = "silent"
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute,
			Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](0)},
			{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists}}
	})
	f.startUp("--node-monitor-period=500ms", "--node-monitor-grace-period=15s")
	waitFor(f, f.CoreV1().Nodes(), "silent", func(n *corev1.Node) bool {
		for _, taint := range n.Spec.Taints {
			if taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoExecute {
				return true
			}
		}
		return false
	})
	waitFor(f, f.CoreV1().Pods("default"), "a", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// TestControllerElection starts `trellis-cluster controllers` twice. It checks that only the first process runs
// controllers. The second process must run them after the first has exited.
func TestControllerElection(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1)
	args := []string{"controllers", "--kubeconfig=" + f.server.Kubeconfig, "--secure-port=0", "--kube-api-qps=-1",
		"--leader-elect-retry-period=500ms", "-v=4"}
	first := startProgram(t, "trellis-cluster", args...)
	first.waitForOutput(1, "Successfully acquired lease", "kube-system/trellis-cluster-controllers")
	second := startProgram(t, "trellis-cluster", args...)
	second.waitForOutput(1, "Lease is held by and has not yet expired", "kube-system/trellis-cluster-controllers")
	if strings.Contains(second.output(), "Successfully acquired lease") {
		t.Error("both instances hold the Lease")
	}
	if code := first.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	second.waitForOutput(1, "Successfully acquired lease", "kube-system/trellis-cluster-controllers")
	sets := f.AppsV1().ReplicaSets("default")
	_, err := sets.Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: objectMeta("web"),
		Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: webLabels}, Template: podTemplate()}},
		metav1.CreateOptions{})
	f.must(err)
	waitFor(f, sets, "web", func(s *appsv1.ReplicaSet) bool { return s.Status.Replicas == 1 })
}

// TestControllersOfServer starts trellis-cluster with a list of controllers. It checks that trellis-cluster skips the
// controllers that the API server already runs, and that it runs the rest of the list.
func TestControllersOfServer(t *testing.T) {
	t.Parallel()
	for serverFlag, runs := range map[string]bool{"*": false, "-*": true} {
		f := newFixture(t, 0, testserver.With(func(c *apiserver.Config) { c.Controllers = []string{serverFlag} }))
		p := startProgram(t, "trellis-cluster", "controllers", "--kubeconfig="+f.server.Kubeconfig, "--secure-port=0",
			"--leader-elect=false", "-v=1",
			"--controllers=serviceaccount-controller,service-cidr-controller,deployment-controller")
		p.waitForOutput(1, "Controller starting...", `controller="deployment-controller"`)
		if runs {
			p.waitForOutput(1, "Controller starting...", `controller="serviceaccount-controller"`)
			waitFor(f, f.CoreV1().ServiceAccounts("default"), "default",
				func(*corev1.ServiceAccount) bool { return true })
		} else {
			p.waitForOutput(1, "controller is disabled", `controller="serviceaccount-controller"`)
		}
		p.waitForOutput(1, "controller is disabled", `controller="service-cidr-controller"`)
		l, err := f.CoordinationV1().Leases("kube-system").Get(t.Context(), "trellis-serve", metav1.GetOptions{})
		f.must(err)
		names := l.Annotations["trellis.dev/controllers"]
		if strings.Contains(names, "serviceaccount-controller") == runs ||
			!strings.Contains(names, "service-cidr-controller") {
			t.Errorf("--controllers=%s: got annotation %s", serverFlag, names)
		}
	}
}

// TestServiceAccountCredentials checks that with --use-service-account-credentials, each controller uses its own
// service account.
func TestServiceAccountCredentials(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1)
	f.startUp("--use-service-account-credentials")
	sets := f.AppsV1().ReplicaSets("default")
	_, err := sets.Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: objectMeta("web"),
		Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: webLabels}, Template: podTemplate()}},
		metav1.CreateOptions{})
	f.must(err)
	waitFor(f, sets, "web", func(s *appsv1.ReplicaSet) bool { return s.Status.AvailableReplicas == 1 })
	_, err = f.CoreV1().ServiceAccounts("kube-system").Get(t.Context(), "replicaset-controller", metav1.GetOptions{})
	f.must(err)
}
