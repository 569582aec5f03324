package testserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"
)

const (
	concurrentWrites     = 16 // writes of simulated nodes: concurrent writes share a commit of the store
	leaseDurationSeconds = 40 // as a kubelet's, like leaseRenewInterval
	leaseRenewInterval   = 10 * time.Second
)

// nodes simulates the kubelets of a set of nodes.
type nodes struct {
	server    *Server
	addresses map[string]string // by node name
	client    kubernetes.Interface
	writes    errgroup.Group // its functions return nil
	running   sync.WaitGroup
	stop      context.CancelFunc
}

// Nodes creates n simulated nodes with the names node-0, node-1 and so on. They are ready, have a capacity of 110
// Pods each and renew their Leases. A Pod that is bound to such a node is running until it is deleted or has the
// OutcomeAnnotation. The Pod is ready when its readiness gates are true. Nothing binds Pods to nodes or creates Pods
// for a Deployment: the server runs neither a scheduler nor the controllers of workloads. A test starts them itself or
// sets spec.nodeName.
func (s *Server) Nodes(n int) {
	s.t.Helper()
	client := kubernetes.NewForConfigOrDie(s.running.Loopback()).CoreV1().Nodes()
	simulated := &nodes{server: s, addresses: map[string]string{}}
	for i := s.nodeCount; i < s.nodeCount+n; i++ {
		name, address := fmt.Sprintf("node-%d", i), fmt.Sprintf("172.%d.%d.%d", 16+i>>16, i>>8&0xff, i&0xff)
		simulated.addresses[name] = address
		if _, err := client.Create(context.Background(), newNode(name, address), metav1.CreateOptions{}); err != nil {
			s.t.Fatalf("testserver: %v", err)
		}
	}
	s.nodeCount += n
	s.nodes = append(s.nodes, simulated)
	simulated.run()
}

func newNode(name, address string) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name,
			corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address},
				{Type: corev1.NodeHostName, Address: name}},
			NodeInfo: corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"},
		},
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		Reason: "KubeletReady", LastTransitionTime: metav1.Now()}}
	return node
}

// run starts the simulation. It ends when stop is called.
func (n *nodes) run() {
	ctx, cancel := context.WithCancel(context.Background())
	n.stop, n.client = cancel, kubernetes.NewForConfigOrDie(n.server.running.Loopback())
	n.writes.SetLimit(concurrentWrites)
	for name := range n.addresses {
		renewer := lease.NewController(clock.RealClock{}, n.client, name, leaseDurationSeconds, nil, leaseRenewInterval,
			name, corev1.NamespaceNodeLease, nil)
		n.running.Go(func() { renewer.Run(klog.NewContext(ctx, logr.Discard())) }) // the controller logs its end
	}
	bound := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	}
	_, pods := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewFilteredListWatchFromClient(n.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
			bound),
		ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(pod any) { n.reconcile(ctx, pod.(*corev1.Pod)) },
			UpdateFunc: func(_, pod any) { n.reconcile(ctx, pod.(*corev1.Pod)) },
		},
	})
	n.running.Go(func() { pods.RunWithContext(ctx) })
}

// reconcile updates the status of a Pod on a simulated node, or deletes a Pod that has ended. It ignores conflicts,
// because the watch delivers the changed Pod again.
func (n *nodes) reconcile(ctx context.Context, pod *corev1.Pod) {
	address, ours := n.addresses[pod.Spec.NodeName]
	next := pod.DeepCopy()
	changed := ours && n.server.simulate(next, address)
	if !changed && (!ours || pod.DeletionTimestamp == nil) {
		return
	}
	n.writes.Go(func() (err error) {
		if pods := n.client.CoreV1().Pods(pod.Namespace); changed {
			_, err = pods.UpdateStatus(ctx, next, metav1.UpdateOptions{})
		} else {
			err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64),
				Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		}
		if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			n.server.t.Errorf("testserver: Pod %s/%s on %s: %v", pod.Namespace, pod.Name, pod.Spec.NodeName, err)
		}
		return nil
	})
}
