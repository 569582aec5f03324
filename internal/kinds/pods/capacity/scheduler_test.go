package capacity

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeports"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestShortagesEqualScheduler checks that shortages equal those of upstream's scheduler, for random Pods on a random
// node (issue 16).
func TestShortagesEqualScheduler(t *testing.T) {
	r, fit, unfit := rand.New(rand.NewPCG(16, 4)), 0, 0
	for i := range 5000 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				corev1.ResourceCPU:              *resource.NewMilliQuantity(r.Int64N(4000), resource.DecimalSI),
				corev1.ResourceMemory:           *resource.NewQuantity(r.Int64N(6000), resource.BinarySI),
				corev1.ResourceEphemeralStorage: *resource.NewQuantity(r.Int64N(6000), resource.BinarySI),
				corev1.ResourcePods:             *resource.NewQuantity(r.Int64N(8), resource.DecimalSI),
				"hugepages-2Mi":                 *resource.NewQuantity(r.Int64N(4000), resource.BinarySI),
				"example.com/gpu":               *resource.NewQuantity(1+r.Int64N(3000), resource.DecimalSI),
			}}}
		info, x := framework.NewNodeInfo(), New(nil)
		info.SetNode(node)
		for j := range r.IntN(6) {
			rec := recordOf(t, fmt.Sprint(podPrefix, "ns/", j), randomPod(r, "n"))
			x.replace(nil, rec)
			pod := new(corev1.Pod) // the Pod must be decoded from JSON, as in the scheduler
			if err := json.Unmarshal(rec.Value, pod); err != nil {
				t.Fatal(err)
			}
			info.AddPod(pod)
		}
		pod := randomPod(r, "")
		pod.Status = corev1.PodStatus{} // a Pod without a node has no status
		want := map[corev1.ResourceName]int64{}
		for _, l := range noderesources.Fits(pod, info, nil,
			noderesources.ResourceRequestsOptions{EnablePodLevelResources: true}) {
			want[l.ResourceName] = l.Capacity
		}
		if !nodeports.Fits(pod, info) {
			want[""] = 1
		}
		load, got := loadOf(recordOf(t, "p", pod).Value), map[corev1.ResourceName]int64{}
		for _, l := range x.podsOn("n").shortages(&load, node.Status.Allocatable) {
			got[l.resource] = l.total
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%d: got %v, want %v\n%+v\non %+v", i, got, want, pod.Spec, info.Requested)
		}
		if len(want) == 0 {
			fit++
		} else {
			unfit++
		}
	}
	if fit < 500 || unfit < 500 {
		t.Errorf("got %d Pods that fit and %d that do not, want at least 500 of each", fit, unfit)
	}
}

func recordOf(t *testing.T, key string, pod *corev1.Pod) *storage.Record {
	t.Helper()
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return &storage.Record{Key: key, Value: text}
}

func randomPod(r *rand.Rand, node string) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
	for i := range 1 + r.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers, randomContainer(r, p, fmt.Sprint("c", i)))
	}
	for i := range r.IntN(3) {
		c := randomContainer(r, p, fmt.Sprint("i", i))
		if r.IntN(2) == 0 {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	if r.IntN(6) == 0 {
		p.Spec.Overhead = randomResources(r)
	}
	if r.IntN(6) == 0 {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: randomResources(r)}
		if r.IntN(2) == 0 {
			p.Status.Resources, p.Status.AllocatedResources = &corev1.ResourceRequirements{
				Requests: randomResources(r),
			}, randomResources(r)
		}
	}
	if r.IntN(6) == 0 {
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodResizePending,
				Reason: []string{corev1.PodReasonInfeasible, corev1.PodReasonDeferred}[r.IntN(2)]},
		}
	}
	return p
}

// randomContainer returns a container, and may add its status to the Pod.
func randomContainer(r *rand.Rand, p *corev1.Pod, name string) corev1.Container {
	c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: randomResources(r)}}
	if r.IntN(4) == 0 {
		c.Ports = []corev1.ContainerPort{
			{HostPort: r.Int32N(3), HostIP: []string{"", "0.0.0.0", "127.0.0.1", "10.0.0.1"}[r.IntN(4)],
				Protocol: []corev1.Protocol{"", corev1.ProtocolTCP, corev1.ProtocolUDP}[r.IntN(3)]},
		}
	}
	if r.IntN(3) == 0 {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses,
			corev1.ContainerStatus{Name: name, AllocatedResources: randomResources(r),
				Resources: &corev1.ResourceRequirements{Requests: randomResources(r)}})
	}
	return c
}

func randomResources(r *rand.Rand) corev1.ResourceList {
	all := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory,
		corev1.ResourceEphemeralStorage, "hugepages-2Mi", "example.com/gpu"} {
		switch {
		case r.IntN(3) > 0:
		case name == corev1.ResourceCPU:
			all[name] = *resource.NewMilliQuantity(r.Int64N(500), resource.DecimalSI)
		default:
			all[name] = *resource.NewQuantity(r.Int64N(500), resource.BinarySI)
		}
	}
	return all
}
