package capacity

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/trellis-k8s/trellis/internal/object"
)

// podOf reads of a stored Pod what its load is made of: a tenth of the whole, in a tenth of the time. What it says lies in json.
func podOf(json []byte) *corev1.Pod {
	r, pod := reader{object.NewCursor(json)}, new(corev1.Pod)
	r.Members(func(key string) {
		switch key {
		case "spec":
			r.spec(&pod.Spec)
		case "status":
			r.status(&pod.Status)
		}
	})
	return pod
}

type reader struct{ *object.Cursor }

func (r reader) spec(s *corev1.PodSpec) {
	r.Members(func(key string) {
		switch key {
		case "containers":
			s.Containers = r.containers()
		case "initContainers":
			s.InitContainers = r.containers()
		case "overhead":
			s.Overhead = r.amounts()
		case "resources":
			s.Resources = r.resources()
		}
	})
}

func (r reader) containers() (all []corev1.Container) {
	r.Elements(func(int) {
		var c corev1.Container
		r.Members(func(key string) {
			switch key {
			case "name":
				c.Name = r.Text()
			case "restartPolicy":
				c.RestartPolicy = new(corev1.ContainerRestartPolicy(r.Text()))
			case "resources":
				c.Resources = *r.resources()
			case "ports":
				c.Ports = r.ports()
			}
		})
		all = append(all, c)
	})
	return all
}

func (r reader) ports() (all []corev1.ContainerPort) {
	r.Elements(func(int) {
		var p corev1.ContainerPort
		r.Members(func(key string) {
			switch key {
			case "hostPort":
				p.HostPort = int32(r.Int())
			case "hostIP":
				p.HostIP = r.Text()
			case "protocol":
				p.Protocol = corev1.Protocol(r.Text())
			}
		})
		all = append(all, p)
	})
	return all
}

func (r reader) status(s *corev1.PodStatus) {
	r.Members(func(key string) {
		switch key {
		case "phase":
			s.Phase = corev1.PodPhase(r.Text())
		case "conditions":
			s.Conditions = r.conditions()
		case "containerStatuses":
			s.ContainerStatuses = r.statuses()
		case "initContainerStatuses":
			s.InitContainerStatuses = r.statuses()
		case "resources":
			s.Resources = r.resources()
		case "allocatedResources":
			s.AllocatedResources = r.amounts()
		}
	})
}

func (r reader) conditions() (all []corev1.PodCondition) {
	r.Elements(func(int) {
		var c corev1.PodCondition
		r.Members(func(key string) {
			switch key {
			case "type":
				c.Type = corev1.PodConditionType(r.Text())
			case "reason":
				c.Reason = r.Text()
			}
		})
		all = append(all, c)
	})
	return all
}

func (r reader) statuses() (all []corev1.ContainerStatus) {
	r.Elements(func(int) {
		var s corev1.ContainerStatus
		r.Members(func(key string) {
			switch key {
			case "name":
				s.Name = r.Text()
			case "resources":
				s.Resources = r.resources()
			case "allocatedResources":
				s.AllocatedResources = r.amounts()
			}
		})
		all = append(all, s)
	})
	return all
}

// resources are requests alone.
func (r reader) resources() *corev1.ResourceRequirements {
	out := new(corev1.ResourceRequirements)
	r.Members(func(key string) {
		if key == "requests" {
			out.Requests = r.amounts()
		}
	})
	return out
}

func (r reader) amounts() corev1.ResourceList {
	all := corev1.ResourceList{}
	r.Members(func(key string) {
		if quantity, err := resource.ParseQuantity(r.Text()); err == nil {
			all[corev1.ResourceName(key)] = quantity
		}
	})
	return all
}
