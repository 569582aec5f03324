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

// reservedMemory is the amount of memory that Pods cannot request. The kubelet evicts Pods if less memory is free. The
// value is the kubelet's default.
const reservedMemory = "100Mi"

// resources implements cm.ContainerManager. It supports no cgroups of Pods, no device plugins and no exclusive CPUs.
// The runtime sets the limits of containers.
type resources struct {
	cm.ContainerManager
	machine           *machine
	nonRootAnnotation string // Options.NonRootAnnotation
}

func newResources(m *machine, nonRootAnnotation string) resources {
	return resources{ContainerManager: cm.NewStubContainerManager(), machine: m, nonRootAnnotation: nonRootAnnotation}
}

// GetResources returns the options with which a container is created. CRI has no field for runAsNonRoot, so
// GetResources adds an annotation for a container without runAsUser.
func (r resources) GetResources(
	ctx context.Context, pod *corev1.Pod, container *corev1.Container,
) (*kubecontainer.RunContainerOptions, error) {
	options, err := r.ContainerManager.GetResources(ctx, pod, container)
	if err != nil || r.nonRootAnnotation == "" {
		return options, err
	}
	effective := securitycontext.DetermineEffectiveSecurityContext(pod, container)
	if effective.RunAsUser == nil {
		nonRoot := strconv.FormatBool(ptr.Deref(effective.RunAsNonRoot, false))
		annotation := kubecontainer.Annotation{Name: r.nonRootAnnotation, Value: nonRoot}
		options.Annotations = append(options.Annotations, annotation)
	}
	return options, nil
}

// GetCapacity returns the capacity of the node except CPUs and memory.
func (r resources) GetCapacity(logger klog.Logger, _ bool) corev1.ResourceList {
	fs, err := r.machine.RootFsInfo()
	if err != nil {
		logger.Error(err, "Cannot read the size of the node's disk")
		return nil
	}
	return cadvisor.EphemeralStorageCapacityFromFsInfo(fs)
}

// GetPodCgroupRoot returns the cgroup that contains all Pods. Without cgroups of Pods this is the root.
func (resources) GetPodCgroupRoot() string { return "/" }

// NewPodContainerManager returns a manager for Pods without cgroups.
func (r resources) NewPodContainerManager() cm.PodContainerManager {
	return noCgroups{r.ContainerManager.NewPodContainerManager()}
}

// noCgroups implements cm.PodContainerManager for Pods without cgroups. A resize of a Pod changes only its containers.
type noCgroups struct{ cm.PodContainerManager }

// GetPodCgroupConfig returns a configuration without limits. It does not return nil, because a resize of a Pod reads
// the configuration.
func (noCgroups) GetPodCgroupConfig(*corev1.Pod, corev1.ResourceName) (*cm.ResourceConfig, error) {
	return &cm.ResourceConfig{
		Memory: new(int64), CPUShares: new(uint64), CPUQuota: new(int64), CPUPeriod: new(uint64),
	}, nil
}

// SetPodCgroupConfig does nothing.
func (noCgroups) SetPodCgroupConfig(klog.Logger, *corev1.Pod, *cm.ResourceConfig) error { return nil }

// GetNodeAllocatableReservation returns the part of the capacity that is not allocatable.
func (r resources) GetNodeAllocatableReservation() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(reservedMemory)}
}
