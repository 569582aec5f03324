package testserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// OutcomeAnnotation is an annotation for Pods on simulated nodes. Its value is the phase in which the Pod ends:
// Succeeded or Failed.
const OutcomeAnnotation = "testserver.trellis.dev/outcome"

// simulate sets the status of a Pod as a kubelet would. It reports whether the status has changed.
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
		status.HostIP, status.HostIPs = hostIP, []corev1.HostIP{{IP: hostIP}}
		status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	}
	status.Phase, status.ObservedGeneration = outcome(pod), pod.Generation
	status.InitContainerStatuses, status.ContainerStatuses = nil, nil
	for _, c := range pod.Spec.InitContainers {
		one := container(pod, &c, status.Phase)
		if !podutil.IsRestartableInitContainer(&c) { // the container ended when the Pod started
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

// outcome returns the phase that the Pod must have.
func outcome(pod *corev1.Pod) corev1.PodPhase {
	phase := corev1.PodPhase(pod.Annotations[OutcomeAnnotation])
	switch {
	case podutil.IsPodPhaseTerminal(phase):
		return phase
	case pod.DeletionTimestamp != nil: // its containers have been terminated
		return corev1.PodSucceeded
	}
	return corev1.PodRunning
}

// container returns the status of a container in a Pod with the given phase.
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
	end := &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: started, FinishedAt: metav1.Now(),
		ContainerID: status.ContainerID}
	if status.State.Terminated = end; phase == corev1.PodFailed {
		end.ExitCode, end.Reason = 1, "Error"
	}
	return status
}

func setConditions(pod *corev1.Pod) {
	set := func(of corev1.PodConditionType, reason string) {
		condition := &corev1.PodCondition{Type: of, Status: corev1.ConditionTrue, Reason: reason,
			ObservedGeneration: pod.Generation}
		if reason != "" {
			condition.Status = corev1.ConditionFalse
		}
		podutil.UpdatePodCondition(&pod.Status, condition)
	}
	reason := map[corev1.PodPhase]string{corev1.PodSucceeded: "PodCompleted",
		corev1.PodFailed: "PodFailed"}[pod.Status.Phase]
	set(corev1.PodScheduled, "")
	set(corev1.PodInitialized, "")
	set(corev1.PodReadyToStartContainers, reason)
	set(corev1.ContainersReady, reason)
	for _, gate := range pod.Spec.ReadinessGates {
		if _, c := podutil.GetPodCondition(&pod.Status, gate.ConditionType); reason == "" &&
			(c == nil || c.Status != corev1.ConditionTrue) {
			reason = "ReadinessGatesNotReady"
		}
	}
	set(corev1.PodReady, reason)
}
