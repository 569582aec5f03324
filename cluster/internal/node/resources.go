package node

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

// reservedMemory is what Pods do not get, and below which they are evicted: the kubelet's default.
const reservedMemory = "100Mi"

// resources are what the node has for Pods. The kubelet keeps no cgroups of its own here, nor hands out devices or single
// processors: limits are the runtime's.
type resources struct {
	cm.ContainerManager
	machine *machine
}

func newResources(m *machine) resources {
	return resources{ContainerManager: cm.NewStubContainerManager(), machine: m}
}

// GetCapacity is what the node has besides processors and memory.
func (r resources) GetCapacity(logger klog.Logger, _ bool) corev1.ResourceList {
	fs, err := r.machine.RootFsInfo()
	if err != nil {
		logger.Error(err, "Cannot say how large the node's disk is")
		return nil
	}
	return cadvisor.EphemeralStorageCapacityFromFsInfo(fs)
}

// GetNodeAllocatableReservation is what of the capacity Pods do not get.
func (r resources) GetNodeAllocatableReservation() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(reservedMemory)}
}
