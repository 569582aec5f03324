// Command scale measures the time from the creation of a Deployment until all its Pods are bound, and the processor
// time of the server. It then measures the memory of all parts. Its nodes are simulated: they report their capacity and
// renew their Leases.
//
//	scale -kubeconfig FILE -server PID[,PID] -parts PID[,PID] [-nodes 1000] [-pods 5000]
//
// For kube-apiserver, -server also includes the PID of etcd. Controllers and a scheduler must be running.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	// In a measurement, Trellis needed 0.92 of kube-apiserver's time, 0.55 of its processor time and 0.42 of its
	// memory. Both used the same scheduler and controllers, which need more than half of the two cores. So the time of
	// Trellis cannot be less than about 0.6 of kube-apiserver's time. A third of the server's time is upstream's code
	// for a Pod: defaults, conversion, validation and admission. Another third is HTTP/2 and TLS, Events, and the log
	// on disk.
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file` of an administrator")
	server := flag.String("server", "", "comma-separated `PIDs` of which to measure processor time and memory")
	parts := flag.String("parts", "", "comma-separated `PIDs` of which to measure only the memory")
	nodes := flag.Int("nodes", 1000, "number of simulated nodes")
	pods := flag.Int("pods", 5000, "number of replicas of the Deployment")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err)
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	c := cluster{kubernetes.NewForConfigOrDie(config), context.Background()}
	servers := processes(*server)

	leases := c.addNodes(*nodes)
	go c.heartbeats(leases)
	c.waitForNodes(*nodes)
	log.Print("nodes are ready")
	before, start := processorTime(servers), time.Now()
	c.deploy(*pods)
	c.waitForBindings(*pods)
	took, cost := time.Since(start), processorTime(servers)-before
	fmt.Printf("%d pods on %d nodes: %.1f s, %.2f s of the server's processor time\n", *pods, *nodes, took.Seconds(),
		cost.Seconds())
	<-time.After(5 * time.Second) // until writes that follow a binding, such as Events, are complete
	fmt.Printf("anonymous memory: server %.0f MiB, other parts %.0f MiB\n", memory(servers), memory(processes(*parts)))
}

type cluster struct {
	kubernetes.Interface
	context.Context
}

func name(node int) string { return "node-" + strconv.Itoa(node) }

func (c cluster) addNodes(count int) []*coordinationv1.Lease {
	leases := make([]*coordinationv1.Lease, count)
	var all errgroup.Group
	all.SetLimit(16)
	for i := range count {
		all.Go(func() error {
			capacity := corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"),
				corev1.ResourcePods: resource.MustParse("110"),
			}
			n := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{corev1.LabelHostname: name(i)}},
				Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity, Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
						LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()},
				}},
			}
			if _, err := c.CoreV1().Nodes().Create(c, n, metav1.CreateOptions{}); err != nil {
				return err
			}
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name(i),
				Namespace: corev1.NamespaceNodeLease}}
			l, err := c.CoordinationV1().Leases(l.Namespace).Create(c, l, metav1.CreateOptions{})
			leases[i] = l
			return err
		})
	}
	check(all.Wait())
	return leases
}

// heartbeats renews each node's Lease every ten seconds, as a kubelet does.
func (c cluster) heartbeats(last []*coordinationv1.Lease) {
	leases := c.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	tick := time.NewTicker(10 * time.Second / time.Duration(len(last)))
	for i := 0; ; i = (i + 1) % len(last) {
		<-tick.C
		holder, length, now := name(i), int32(40), metav1.NowMicro()
		last[i].Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &length, RenewTime: &now}
		l, err := leases.Update(c, last[i], metav1.UpdateOptions{})
		check(err)
		last[i] = l
	}
}

// waitForNodes waits until the node lifecycle controller has removed all taints of the nodes.
func (c cluster) waitForNodes(nodes int) {
	for ready := 0; ready < nodes; <-time.After(time.Second) {
		list, err := c.CoreV1().Nodes().List(c, metav1.ListOptions{})
		check(err)
		ready = 0
		for _, n := range list.Items {
			if len(n.Spec.Taints) == 0 {
				ready++
			}
		}
	}
}

func (c cluster) deploy(pods int) {
	replicas, labels := int32(pods), map[string]string{"app": "scale"}
	_, err := c.AppsV1().Deployments("default").Create(c, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "scale"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "app", Image: "registry.example/app:1",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceCPU:    resource.MustParse("100m"),
						corev1.ResourceMemory: resource.MustParse("64Mi"),
					}},
				}}},
			},
		},
	}, metav1.CreateOptions{})
	check(err)
}

// waitForBindings waits until all Pods are bound. A server may end a slow watch. The next watch starts with the
// existing Pods.
func (c cluster) waitForBindings(pods int) {
	for bound := map[string]bool{}; len(bound) < pods; {
		w, err := c.CoreV1().Pods("default").Watch(c, metav1.ListOptions{LabelSelector: "app=scale"})
		check(err)
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && p.Spec.NodeName != "" {
				bound[p.Name] = true
			}
			if len(bound) == pods {
				break
			}
		}
		w.Stop()
	}
}

func processes(list string) (pids []int) {
	for f := range strings.SplitSeq(list, ",") {
		if f == "" {
			continue
		}
		pid, err := strconv.Atoi(f)
		check(err)
		pids = append(pids, pid)
	}
	return pids
}

// processorTime returns the total user and system time of the processes.
func processorTime(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		check(err)
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
		for _, f := range fields[11:13] { // user and system time in units of 10 ms
			ticks, err := strconv.ParseInt(f, 10, 64)
			check(err)
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}

// memory returns the total anonymous memory of the processes in MiB.
func memory(pids []int) (sum float64) {
	for _, pid := range pids {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		check(err)
		for line := range strings.Lines(string(status)) {
			var kib float64
			if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kib); n == 1 {
				sum += kib / 1024
			}
		}
	}
	return sum
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
