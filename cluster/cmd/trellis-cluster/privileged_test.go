package main

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// A node runs privileged Pods with --allow-privileged only. Without the flag an Event of the Pod names it.
func TestPrivilegedPods(t *testing.T) {
	w := whole(t)
	for name, flag := range map[string]string{"refuses": "--allow-privileged=false", "allows": "--allow-privileged"} {
		begin(t, "trellis-cluster", "node", "--kubeconfig="+w.server.Kubeconfig, "--hostname-override="+name, "--port=0", "--network=host",
			"--root-dir="+filepath.Join(w.folder(1), name), "--image=busybox=/bin", flag)
	}
	on := func(node string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeName = node
			c := &p.Spec.Containers[0]
			c.Image, c.Command, c.SecurityContext = "busybox", []string{"sleep", "infinity"}, &corev1.SecurityContext{Privileged: ptr.To(true)}
		}
	}
	for _, node := range []string{"refuses", "allows"} {
		w.nodeReady(node)
		w.pod(node, on(node))
	}
	w.running("default", "allows")
	if e := w.event("refuses", "FailedCreatePodSandBox"); !strings.Contains(e.Message, "start it with --allow-privileged") {
		t.Error(e.Message)
	}
}
