package testserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// OutcomeAnnotation of a Pod on a simulated node is the phase that it ends in, Succeeded or Failed.
const OutcomeAnnotation = "testserver.trellis.dev/outcome"

// simulate gives a Pod the status that a kubelet would. It returns false if there is nothing to change.
func (s *Server) simulate(pod *corev1.Pod, hostIP string) bool {
	status, before := &pod.Status, pod.Status.DeepCopy()
	if podutil.IsPodPhaseTerminal(status.Phase) {
		return false
	}
	if status.StartTime == nil {
		now := metav1.Now()
		status.StartTime = now.DeepCopy()
	}
	if status.PodIP == "" {
		status.PodIP = hostIP
		if !pod.Spec.HostNetwork {
			i := s.podCount.Add(1)
			status.PodIP = fmt.Sprintf("10.%d.%d.%d", 128+i>>16&0x7f, i>>8&0xff, i&0xff)
		}
		status.HostIP, status.HostIPs, status.PodIPs = hostIP, []corev1.HostIP{{IP: hostIP}}, []corev1.PodIP{{IP: status.PodIP}}
	}
	status.Phase, status.ObservedGeneration = outcome(pod), pod.Generation
	status.InitContainerStatuses, status.ContainerStatuses = nil, nil
	for _, c := range pod.Spec.InitContainers {
		one := container(pod, &c, status.Phase)
		if !podutil.IsRestartableInitContainer(&c) { // it ended when the Pod began
			one = container(pod, &c, corev1.PodSucceeded)
			one.Ready, one.State.Terminated.FinishedAt = true, *status.StartTime
		}
		status.InitContainerStatuses = append(status.InitContainerStatuses, one)
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, container(pod, &c, status.Phase))
	}
	setConditions(pod)
	return !equality.Semantic.DeepEqual(before, status)
}

// outcome is the phase that a Pod is to have.
func outcome(pod *corev1.Pod) corev1.PodPhase {
	wanted := corev1.PodPhase(pod.Annotations[OutcomeAnnotation])
	switch {
	case podutil.IsPodPhaseTerminal(wanted):
		return wanted
	case pod.DeletionTimestamp != nil: // its containers have been told to end
		return corev1.PodSucceeded
	}
	return corev1.PodRunning
}

// container is the status of one in a Pod of a phase.
func container(pod *corev1.Pod, c *corev1.Container, phase corev1.PodPhase) corev1.ContainerStatus {
	started, running := *pod.Status.StartTime, phase == corev1.PodRunning
	status := corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: "simulated://" + string(pod.UID) + "/" + c.Name,
		Ready: running, Started: &running, AllocatedResources: c.Resources.Requests, Resources: c.Resources.DeepCopy(),
	}
	if running {
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: started}
		return status
	}
	end := &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: started, FinishedAt: metav1.Now(), ContainerID: status.ContainerID}
	if status.State.Terminated = end; phase == corev1.PodFailed {
		end.ExitCode, end.Reason = 1, "Error"
	}
	return status
}

func setConditions(pod *corev1.Pod) {
	set := func(of corev1.PodConditionType, reason string) {
		condition := &corev1.PodCondition{Type: of, Status: corev1.ConditionTrue, Reason: reason, ObservedGeneration: pod.Generation}
		if reason != "" {
			condition.Status = corev1.ConditionFalse
		}
		podutil.UpdatePodCondition(&pod.Status, condition)
	}
	why := map[corev1.PodPhase]string{corev1.PodSucceeded: "PodCompleted", corev1.PodFailed: "PodFailed"}[pod.Status.Phase]
	set(corev1.PodScheduled, "")
	set(corev1.PodInitialized, "")
	set(corev1.PodReadyToStartContainers, why)
	set(corev1.ContainersReady, why)
	for _, gate := range pod.Spec.ReadinessGates {
		if _, c := podutil.GetPodCondition(&pod.Status, gate.ConditionType); why == "" && (c == nil || c.Status != corev1.ConditionTrue) {
			why = "ReadinessGatesNotReady"
		}
	}
	set(corev1.PodReady, why)
}
