package node

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/securitycontext"
	"k8s.io/utils/ptr"
)

// reservedMemory is what Pods do not get, and below which they are evicted: the kubelet's default.
const reservedMemory = "100Mi"

// resources are what the node has for Pods. The kubelet keeps no cgroups of its own here, nor hands out devices or single
// processors: limits are the runtime's.
type resources struct {
	cm.ContainerManager
	machine           *machine
	nonRootAnnotation string // "": none
}

func newResources(m *machine, nonRootAnnotation string) resources {
	return resources{ContainerManager: cm.NewStubContainerManager(), machine: m, nonRootAnnotation: nonRootAnnotation}
}

// GetResources returns what a container is created with. CRI has no field for runAsNonRoot, so an annotation of the
// container passes it on where the Pod names no user.
func (r resources) GetResources(ctx context.Context, pod *corev1.Pod, container *corev1.Container) (*kubecontainer.RunContainerOptions, error) {
	options, err := r.ContainerManager.GetResources(ctx, pod, container)
	if err != nil || r.nonRootAnnotation == "" {
		return options, err
	}
	effective := securitycontext.DetermineEffectiveSecurityContext(pod, container)
	if effective.RunAsUser == nil {
		nonRoot := strconv.FormatBool(ptr.Deref(effective.RunAsNonRoot, false))
		options.Annotations = append(options.Annotations, kubecontainer.Annotation{Name: r.nonRootAnnotation, Value: nonRoot})
	}
	return options, nil
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

// GetPodCgroupRoot is where the kubelet finds what all Pods use: they have no other in common.
func (resources) GetPodCgroupRoot() string { return "/" }

// NewPodContainerManager keeps the cgroups of Pods.
func (r resources) NewPodContainerManager() cm.PodContainerManager {
	return noCgroups{r.ContainerManager.NewPodContainerManager()}
}

// noCgroups are those of Pods: what a resize changes is the containers' alone.
type noCgroups struct{ cm.PodContainerManager }

// GetPodCgroupConfig is of no limits, rather than nothing: a resize compares with it.
func (noCgroups) GetPodCgroupConfig(*corev1.Pod, corev1.ResourceName) (*cm.ResourceConfig, error) {
	return &cm.ResourceConfig{Memory: new(int64), CPUShares: new(uint64), CPUQuota: new(int64), CPUPeriod: new(uint64)}, nil
}

// SetPodCgroupConfig has none to change.
func (noCgroups) SetPodCgroupConfig(klog.Logger, *corev1.Pod, *cm.ResourceConfig) error { return nil }

// GetNodeAllocatableReservation is what of the capacity Pods do not get.
func (r resources) GetNodeAllocatableReservation() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(reservedMemory)}
}
