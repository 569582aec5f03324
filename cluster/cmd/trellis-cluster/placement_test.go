package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fourNodes is a world in which node-0 is small and has an SSD, node-1 is larger, node-2 too but tainted, and node-3 is the largest
// and takes none.
func fourNodes(t *testing.T) *world {
	w := newWorld(t, 4, ready)
	for name, of := range map[string]struct{ cpu, zone string }{"node-0": {"2", "x"}, "node-1": {"8", "y"}, "node-2": {"8", "x"}, "node-3": {"64", "y"}} {
		w.node(name, func(n *corev1.Node) {
			n.Labels["zone"] = of.zone
			n.Labels["name"] = name
			room := resource.MustParse(of.cpu)
			n.Status.Allocatable[corev1.ResourceCPU], n.Status.Capacity[corev1.ResourceCPU] = room, room
			switch name {
			case "node-0":
				n.Labels["disk"] = "ssd"
			case "node-2":
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule})
			case "node-3":
				n.Spec.Unschedulable = true
			}
		})
	}
	begin(t, "kube-scheduler", "--kubeconfig="+w.server.Kubeconfig, "--secure-port=0", "--leader-elect=false")
	return w
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{key: value} }
}

func port(number int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: number, HostPort: number}}
	}
}

func tolerates(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
}

func inZone(zone string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		in := corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{in}}},
		}}}
	}
}

// terms are those of affinity to Pods that have a label.
func terms(key, value string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}, TopologyKey: corev1.LabelHostname}}
}

func with(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(key, value)}}
	}
}

func without(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(key, value)}}
	}
}

func spread(p *corev1.Pod) {
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
	}}
}

// SCD-041: what a scheduler respects. Pods are made one after the other; each is where it has to be, or is told why it is nowhere.
func TestPlacement(t *testing.T) {
	w := fourNodes(t)
	for _, c := range []struct {
		name   string
		change []func(*corev1.Pod)
		node   string   // where it has to be; "" for nowhere
		says   []string // why
	}{
		{"requests", []func(*corev1.Pod){cpu("4")}, "node-1", nil},
		{"too-much", []func(*corev1.Pod){cpu("32")}, "", []string{"0/4 nodes are available", "2 Insufficient cpu", "1 node(s) were unschedulable", "1 node(s) had untolerated taint(s)"}},
		{"selector", []func(*corev1.Pod){on("disk", "ssd")}, "node-0", nil},
		{"no-such-label", []func(*corev1.Pod){on("disk", "tape")}, "", []string{"didn't match Pod's node affinity/selector"}},
		{"affinity", []func(*corev1.Pod){inZone("y")}, "node-1", nil},
		{"untolerated", []func(*corev1.Pod){on("name", "node-2")}, "", []string{"untolerated taint"}},
		{"tolerated", []func(*corev1.Pod){on("name", "node-2"), tolerates("dedicated")}, "node-2", nil},
		{"unschedulable", []func(*corev1.Pod){on("name", "node-3")}, "", []string{"unschedulable"}},
		{"port", []func(*corev1.Pod){on("disk", "ssd"), port(8080)}, "node-0", nil},
		{"port-again", []func(*corev1.Pod){on("disk", "ssd"), port(8080)}, "", []string{"didn't have free ports"}},
		{"other-port", []func(*corev1.Pod){on("disk", "ssd"), port(8081)}, "node-0", nil},
		{"database", []func(*corev1.Pod){on("disk", "ssd"), labelled("app", "database")}, "node-0", nil},
		{"with-it", []func(*corev1.Pod){with("app", "database")}, "node-0", nil},
		{"without-it", []func(*corev1.Pod){without("app", "database")}, "node-1", nil},
		{"with-nobody", []func(*corev1.Pod){with("app", "nobody")}, "", []string{"didn't match pod affinity rules"}},
		{"spread-1", []func(*corev1.Pod){labelled("app", "web"), spread, on("disk", "ssd")}, "node-0", nil},
		{"spread-2", []func(*corev1.Pod){labelled("app", "web"), spread}, "node-1", nil},
		{"spread-3", []func(*corev1.Pod){labelled("app", "web"), spread, on("disk", "ssd")}, "node-0", nil},
		{"node-name", []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.NodeName = "node-3" }}, "node-3", nil},
	} {
		w.pod(c.name, c.change...)
		if c.node != "" {
			if is := w.bound(c.name).Spec.NodeName; is != c.node {
				t.Errorf("%s: on %s, not %s", c.name, is, c.node)
			}
			continue
		}
		if said := w.unplaced(c.name, corev1.PodReasonUnschedulable); !hasAll(said, c.says) {
			t.Errorf("%s: %s", c.name, said)
		}
		if e := w.event(c.name, "FailedScheduling"); e.Type != corev1.EventTypeWarning || !strings.HasPrefix(e.Message, "0/4 nodes are available: ") {
			t.Errorf("%s: %+v", c.name, e) // SCD-039
		}
	}
}

// SCD-041: a Pod with gates waits until it has none.
func TestSchedulingGates(t *testing.T) {
	w := fourNodes(t)
	pod := w.pod("gated", func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/not-yet"}}
	})
	w.unplaced("gated", corev1.PodReasonSchedulingGated)
	w.pod("other")
	w.bound("other")
	pod, err := w.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
	w.must(err)
	if pod.Spec.NodeName != "" {
		t.Errorf("it is on %s", pod.Spec.NodeName)
	}
	pod.Spec.SchedulingGates = nil
	_, err = w.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{})
	w.must(err)
	w.bound("gated")
}

// SCD-041: a Pod of a higher priority takes the place of others; those of the system have the highest.
func TestPreemption(t *testing.T) {
	w := fourNodes(t)
	for _, name := range []string{"system-cluster-critical", "system-node-critical"} {
		if c, err := w.SchedulingV1().PriorityClasses().Get(t.Context(), name, metav1.GetOptions{}); err != nil || c.Value < 2_000_000_000 {
			t.Errorf("%s: %+v %v", name, c, err)
		}
	}
	_, err := w.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}, metav1.CreateOptions{})
	w.must(err)
	of := func(class string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.PriorityClassName = class } }
	last := "low"
	w.pod(last, cpu("2"), on("disk", "ssd"))
	w.bound(last)
	for _, class := range []string{"high", "system-node-critical"} {
		w.pod(class, cpu("2"), on("disk", "ssd"), of(class))
		w.bound(class)
		pods := w.CoreV1().Pods("default")
		gone(w, pods, last, func() bool {
			_, err := pods.Get(t.Context(), last, metav1.GetOptions{})
			return err == nil
		})
		if e := w.event(last, "Preempted"); !strings.HasPrefix(e.Message, "Preempted by pod ") {
			t.Errorf("%+v", e)
		}
		last = class
	}
}
