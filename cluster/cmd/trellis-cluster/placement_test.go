package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newFourNodeFixture starts a server with four nodes and a scheduler. node-0 is small and has an SSD. node-1 and node-2
// are larger, and node-2 has a taint. node-3 is the largest and unschedulable.
func newFourNodeFixture(t *testing.T) *fixture {
	f := newFixture(t, 4, withoutNodeTaints)
	for name, of := range map[string]struct{ cpu, zone string }{"node-0": {"2", "x"}, "node-1": {"8", "y"},
		"node-2": {"8", "x"}, "node-3": {"64", "y"}} {
		f.updateNode(name, func(n *corev1.Node) {
			n.Labels["zone"] = of.zone
			n.Labels["name"] = name
			amount := resource.MustParse(of.cpu)
			n.Status.Allocatable[corev1.ResourceCPU], n.Status.Capacity[corev1.ResourceCPU] = amount, amount
			switch name {
			case "node-0":
				n.Labels["disk"] = "ssd"
			case "node-2":
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "dedicated", Value: "gpu",
					Effect: corev1.TaintEffectNoSchedule})
			case "node-3":
				n.Spec.Unschedulable = true
			}
		})
	}
	startProgram(t, "kube-scheduler", "--kubeconfig="+f.server.Kubeconfig, "--secure-port=0", "--leader-elect=false")
	return f
}

func withLabel(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{key: value} }
}

func withHostPort(number int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: number, HostPort: number}}
	}
}

func withToleration(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key,
			Operator: corev1.TolerationOpExists})
	}
}

func withZone(zone string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		in := corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}
		term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in}}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{term},
			},
		}}
	}
}

// affinityTerms returns affinity terms for Pods with a label. Their topology key is the host name.
func affinityTerms(key, value string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}},
		TopologyKey: corev1.LabelHostname}}
}

func withPodAffinity(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: affinityTerms(key, value),
		}}
	}
}

func withPodAntiAffinity(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: affinityTerms(key, value),
		}}
	}
}

func withZoneSpread(p *corev1.Pod) {
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
	}}
}

// TestPlacement checks that the scheduler respects resources, selectors, affinity, taints, ports and spreading. It
// creates the Pods one after the other. Each Pod must be bound to the expected node, or its condition must contain the
// expected reasons why no node fits. SCD-041
func TestPlacement(t *testing.T) {
	t.Parallel()
	f := newFourNodeFixture(t)
	for _, c := range []struct {
		name   string
		change []func(*corev1.Pod)
		node   string   // expected node; "" means none
		reason []string // parts of the message if no node fits
	}{
		{"requests", []func(*corev1.Pod){withCPURequest("4")}, "node-1", nil},
		{"too-much", []func(*corev1.Pod){withCPURequest("32")}, "",
			[]string{"0/4 nodes are available", "2 Insufficient cpu", "1 node(s) were unschedulable",
				"1 node(s) had untolerated taint(s)"}},
		{"selector", []func(*corev1.Pod){withNodeSelector("disk", "ssd")}, "node-0", nil},
		{"no-such-label", []func(*corev1.Pod){withNodeSelector("disk", "tape")}, "",
			[]string{"didn't match Pod's node affinity/selector"}},
		{"affinity", []func(*corev1.Pod){withZone("y")}, "node-1", nil},
		{"untolerated", []func(*corev1.Pod){withNodeSelector("name", "node-2")}, "", []string{"untolerated taint"}},
		{"tolerated", []func(*corev1.Pod){withNodeSelector("name", "node-2"), withToleration("dedicated")}, "node-2",
			nil},
		{"unschedulable", []func(*corev1.Pod){withNodeSelector("name", "node-3")}, "", []string{"unschedulable"}},
		{"port", []func(*corev1.Pod){withNodeSelector("disk", "ssd"), withHostPort(8080)}, "node-0", nil},
		{"port-again", []func(*corev1.Pod){withNodeSelector("disk", "ssd"), withHostPort(8080)}, "",
			[]string{"didn't have free ports"}},
		{"other-port", []func(*corev1.Pod){withNodeSelector("disk", "ssd"), withHostPort(8081)}, "node-0", nil},
		{"database", []func(*corev1.Pod){withNodeSelector("disk", "ssd"), withLabel("app", "database")}, "node-0", nil},
		{"with-it", []func(*corev1.Pod){withPodAffinity("app", "database")}, "node-0", nil},
		{"without-it", []func(*corev1.Pod){withPodAntiAffinity("app", "database")}, "node-1", nil},
		{"with-none", []func(*corev1.Pod){withPodAffinity("app", "none")}, "",
			[]string{"didn't match pod affinity rules"}},
		{"spread-1", []func(*corev1.Pod){withLabel("app", "web"), withZoneSpread, withNodeSelector("disk", "ssd")},
			"node-0", nil},
		{"spread-2", []func(*corev1.Pod){withLabel("app", "web"), withZoneSpread}, "node-1", nil},
		{"spread-3", []func(*corev1.Pod){withLabel("app", "web"), withZoneSpread, withNodeSelector("disk", "ssd")},
			"node-0", nil},
		{"node-name", []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.NodeName = "node-3" }}, "node-3", nil},
	} {
		f.createPod(c.name, c.change...)
		if c.node != "" {
			if got := f.waitForBinding(c.name).Spec.NodeName; got != c.node {
				t.Errorf("Pod %s: got node %s, want %s", c.name, got, c.node)
			}
			continue
		}
		if output := f.waitForUnscheduled(c.name, corev1.PodReasonUnschedulable); !hasAll(output, c.reason) {
			t.Errorf("Pod %s: got message %q, want %q", c.name, output, c.reason)
		}
		if e := f.waitForEvent(c.name, "FailedScheduling"); e.Type != corev1.EventTypeWarning ||
			!strings.HasPrefix(e.Message, "0/4 nodes are available: ") {
			t.Errorf("%s: %+v", c.name, e) // SCD-039
		}
	}
}

// TestSchedulingGates checks that a Pod with scheduling gates is not bound until they are removed. SCD-041
func TestSchedulingGates(t *testing.T) {
	t.Parallel()
	f := newFourNodeFixture(t)
	pod := f.createPod("gated", func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/not-yet"}}
	})
	f.waitForUnscheduled("gated", corev1.PodReasonSchedulingGated)
	f.createPod("other")
	f.waitForBinding("other")
	pod, err := f.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
	f.must(err)
	if pod.Spec.NodeName != "" {
		t.Errorf("got node %s, want none", pod.Spec.NodeName)
	}
	pod.Spec.SchedulingGates = nil
	_, err = f.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{})
	f.must(err)
	f.waitForBinding("gated")
}

// TestPreemption checks that a Pod of higher priority preempts other Pods, and that the priority classes of the system
// have the highest priority. SCD-041
func TestPreemption(t *testing.T) {
	t.Parallel()
	f := newFourNodeFixture(t)
	for _, name := range []string{"system-cluster-critical", "system-node-critical"} {
		if c, err := f.SchedulingV1().PriorityClasses().Get(t.Context(), name, metav1.GetOptions{}); err != nil ||
			c.Value < 2_000_000_000 {
			t.Errorf("%s: %+v %v", name, c, err)
		}
	}
	_, err := f.SchedulingV1().PriorityClasses().Create(t.Context(),
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}, metav1.CreateOptions{})
	f.must(err)
	of := func(class string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.PriorityClassName = class } }
	last := "low"
	f.createPod(last, withCPURequest("2"), withNodeSelector("disk", "ssd"))
	f.waitForBinding(last)
	for _, class := range []string{"high", "system-node-critical"} {
		f.createPod(class, withCPURequest("2"), withNodeSelector("disk", "ssd"), of(class))
		f.waitForBinding(class)
		pods := f.CoreV1().Pods("default")
		waitForDeletion(f, pods, last, func() bool {
			_, err := pods.Get(t.Context(), last, metav1.GetOptions{})
			return err == nil
		})
		if e := f.waitForEvent(last, "Preempted"); !strings.HasPrefix(e.Message, "Preempted by pod ") {
			t.Errorf("%+v", e)
		}
		last = class
	}
}
