package testserver_test

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/ptr"

	"golang.org/x/sync/errgroup"

	"github.com/trellis-k8s/trellis/testserver"
)

func ExampleServer_Nodes() {
	var t *testing.T // the test's parameter
	server := testserver.Start(t)
	server.Nodes(100)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec:       corev1.PodSpec{NodeName: "node-7", Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
	}
	client := kubernetes.NewForConfigOrDie(server.Config)
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A controller under test now sees the Pod running.
}

// pods accesses the Pods of the namespace default.
type pods struct {
	*testing.T
	kubernetes.Interface
}

func (p pods) create(name, node string, change func(*corev1.Pod)) {
	p.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "a", Image: "image-a"}}},
	}
	if change != nil {
		change(pod)
	}
	if _, err := p.CoreV1().Pods("default").Create(p.Context(), pod, metav1.CreateOptions{}); err != nil {
		p.Fatal(err)
	}
}

// watchUntil receives events until done returns true. The watch begins with the existing objects.
func watchUntil(t *testing.T, w watch.Interface, err error, done func(watch.Event) bool) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if done(e) {
			return
		}
	}
	t.Fatal("the watch has ended")
}

// until waits until done returns true for the existing Pods, by name.
func (p pods) until(done func(map[string]*corev1.Pod) bool) {
	p.Helper()
	all := map[string]*corev1.Pod{}
	w, err := p.CoreV1().Pods("default").Watch(p.Context(), metav1.ListOptions{})
	watchUntil(p.T, w, err, func(e watch.Event) bool {
		pod := e.Object.(*corev1.Pod)
		all[pod.Name] = pod
		if e.Type == watch.Deleted {
			delete(all, pod.Name)
		}
		return done(all)
	})
}

// one waits until done returns true for a Pod, and returns the Pod.
func (p pods) one(name string, done func(*corev1.Pod) bool) (pod *corev1.Pod) {
	p.Helper()
	p.until(func(all map[string]*corev1.Pod) bool {
		pod = all[name]
		return pod != nil && done(pod)
	})
	return pod
}

func (p pods) annotate(name, outcome string) {
	p.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, testserver.OutcomeAnnotation, outcome)
	if _, err := p.CoreV1().Pods("default").Patch(p.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		p.Fatal(err)
	}
}

func start(t *testing.T, n int, options ...testserver.Option) (*testserver.Server, pods) {
	t.Helper()
	s := testserver.Start(t, options...)
	s.Nodes(n)
	return s, pods{t, kubernetes.NewForConfigOrDie(s.Config)}
}

// TestNodes checks the fields and Leases of simulated nodes, and that more nodes can be added.
func TestNodes(t *testing.T) {
	s, p := start(t, 2)
	s.Nodes(1)
	nodes, err := p.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 3 {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	names, addresses := map[string]bool{}, map[string]bool{}
	for i, node := range nodes.Items {
		if want := fmt.Sprintf("node-%d", i); node.Name != want || node.Labels[corev1.LabelHostname] != want {
			t.Errorf("%s has the labels %v", node.Name, node.Labels)
		}
		if allocatable := node.Status.Allocatable; allocatable.Pods().Value() != 110 || allocatable.Cpu().IsZero() ||
			allocatable.Memory().IsZero() {
			t.Errorf("allocatable: %v", allocatable)
		}
		for _, c := range node.Status.Conditions {
			if (c.Type == corev1.NodeReady) != (c.Status == corev1.ConditionTrue) {
				t.Errorf("%s is %s", c.Type, c.Status)
			}
		}
		names[node.Name], addresses[node.Status.Addresses[0].Address] = true, true
	}
	if len(addresses) != 3 {
		t.Errorf("addresses %v", addresses)
	}
	w, err := p.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(t.Context(), metav1.ListOptions{})
	watchUntil(t, w, err, func(e watch.Event) bool {
		l := e.Object.(*coordinationv1.Lease)
		if *l.Spec.HolderIdentity != l.Name || l.Spec.RenewTime == nil || *l.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("%+v", l)
		}
		delete(names, l.Name)
		return len(names) == 0
	})
}

// TestPodsRun checks that a Pod runs when it is bound, by its field or by a Binding, with the status that a kubelet
// would set.
func TestPodsRun(t *testing.T) {
	_, p := start(t, 2)
	p.create("elsewhere", "another", nil)
	p.create("bound", "", func(pod *corev1.Pod) {
		pod.Generation = 0
		pod.Spec.InitContainers = []corev1.Container{{Name: "once", Image: "i"},
			{Name: "beside", Image: "i", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	})
	p.create("host", "node-1", func(pod *corev1.Pod) { pod.Spec.HostNetwork = true })
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "bound"},
		Target: corev1.ObjectReference{Kind: "Node", Name: "node-0"}}
	if err := p.CoreV1().Pods("default").Bind(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	running := func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }
	host := p.one("host", running)
	if host.Status.PodIP != host.Status.HostIP || !podutil.IsPodReady(host) {
		t.Errorf("%+v", host.Status)
	}
	pod := p.one("bound", running)
	status := &pod.Status
	if status.HostIP == host.Status.HostIP || status.PodIP == "" || status.PodIP == status.HostIP ||
		status.StartTime == nil || status.ObservedGeneration != pod.Generation || pod.Generation == 0 {
		t.Errorf("%+v", status)
	}
	for of, want := range map[corev1.PodConditionType]corev1.ConditionStatus{
		corev1.PodScheduled: corev1.ConditionTrue, corev1.PodInitialized: corev1.ConditionTrue,
		corev1.PodReadyToStartContainers: corev1.ConditionTrue,
		// because of the readiness gate
		corev1.ContainersReady: corev1.ConditionTrue, corev1.PodReady: corev1.ConditionFalse,
	} {
		if _, c := podutil.GetPodCondition(status, of); c == nil || c.Status != want {
			t.Errorf("%s: %+v", of, c)
		}
	}
	if c := status.ContainerStatuses[0]; c.State.Running == nil || !c.Ready || !*c.Started || c.Image != "image-a" ||
		c.Resources.Requests.Cpu().Value() != 1 {
		t.Errorf("%+v", c)
	}
	if c := status.InitContainerStatuses; c[0].State.Terminated == nil || !c[0].Ready || c[1].State.Running == nil ||
		!c[1].Ready {
		t.Errorf("%+v", c)
	}
	patch := `{"status":{"conditions":[{"type":"example.com/gate","status":"True"}]}}`
	if _, err := p.CoreV1().Pods("default").Patch(t.Context(), "bound", types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	p.one("bound", podutil.IsPodReady)
	if pod, err := p.CoreV1().Pods("default").Get(t.Context(), "elsewhere", metav1.GetOptions{}); err != nil ||
		pod.Status.Phase != corev1.PodPending {
		t.Errorf("on a node that is not simulated: %v %+v", err, pod.Status)
	}
}

// TestOutcomes checks that Pods end in the phase of their annotation, set at their creation or later.
func TestOutcomes(t *testing.T) {
	_, p := start(t, 1)
	for _, name := range []string{"fails", "succeeds"} {
		p.create(name, "node-0", func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyNever })
		p.one(name, podutil.IsPodReady)
	}
	p.annotate("fails", "Failed")
	p.annotate("succeeds", "Succeeded")
	p.create("at-once", "node-0", func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{testserver.OutcomeAnnotation: "Failed"}
	})
	for name, want := range map[string]corev1.PodPhase{"fails": corev1.PodFailed, "succeeds": corev1.PodSucceeded,
		"at-once": corev1.PodFailed} {
		pod := p.one(name, podutil.IsPodTerminal)
		end := pod.Status.ContainerStatuses[0].State.Terminated
		if pod.Status.Phase != want || end == nil || (end.ExitCode == 0) != (want == corev1.PodSucceeded) ||
			podutil.IsPodReady(pod) {
			t.Errorf("%s: %+v", name, pod.Status)
		}
	}
}

// TestPodDeletion checks that a deleted Pod gets a grace period, ends, and is then removed.
func TestPodDeletion(t *testing.T) {
	_, p := start(t, 1)
	p.create("a", "node-0", nil)
	p.one("a", podutil.IsPodReady)
	w, err := p.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	if err := p.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var marked, ended bool
	watchUntil(t, w, err, func(e watch.Event) bool {
		pod := e.Object.(*corev1.Pod)
		marked = marked || pod.DeletionTimestamp != nil && *pod.DeletionGracePeriodSeconds == 30 &&
			pod.Status.Phase == corev1.PodRunning
		ended = ended || pod.Status.Phase == corev1.PodSucceeded
		return e.Type == watch.Deleted
	})
	if !marked || !ended {
		t.Errorf("marked %t, ended %t", marked, ended)
	}
}

// TestNodesAfterRestart checks that the simulated nodes and their Pods continue after a restart of the server.
func TestNodesAfterRestart(t *testing.T) {
	s, p := start(t, 1, testserver.OnDisk())
	p.create("before", "node-0", nil)
	p.one("before", podutil.IsPodReady)
	s.Restart()
	p = pods{t, kubernetes.NewForConfigOrDie(s.Config)}
	p.create("after", "node-0", nil)
	after := p.one("after", podutil.IsPodReady)
	if before := p.one("before", podutil.IsPodReady); before.Status.PodIP == after.Status.PodIP {
		t.Errorf("both have the address %s", after.Status.PodIP)
	}
}

// TestThousandPods checks that a thousand Pods on a hundred nodes run and are deleted.
func TestThousandPods(t *testing.T) {
	began := time.Now()
	_, p := start(t, 100)
	t.Logf("nodes after %v", time.Since(began))
	const n = 1000
	var creates errgroup.Group
	creates.SetLimit(16)
	for i := range n {
		creates.Go(func() error { p.create(fmt.Sprintf("pod-%d", i), fmt.Sprintf("node-%d", i%100), nil); return nil })
	}
	_ = creates.Wait() // the functions return nil
	t.Logf("Pods created after %v", time.Since(began))
	p.until(func(all map[string]*corev1.Pod) bool {
		addresses := map[string]bool{}
		for _, pod := range all {
			if podutil.IsPodReady(pod) {
				addresses[pod.Status.PodIP] = true
			}
		}
		return len(addresses) == n
	})
	t.Logf("Pods ready after %v", time.Since(began))
	if err := p.CoreV1().Pods("default").DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	left, err := p.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for remaining := len(left.Items); remaining > 0; {
		w, err := p.CoreV1().Pods("default").Watch(t.Context(),
			metav1.ListOptions{ResourceVersion: left.ResourceVersion})
		watchUntil(t, w, err, func(e watch.Event) bool {
			if e.Type == watch.Deleted {
				remaining--
			}
			return remaining == 0
		})
	}
	t.Logf("Pods deleted after %v", time.Since(began))
}
