package main

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestPrivilegedPods checks that a node runs privileged Pods only with --allow-privileged. Without this flag, the Pod
// must get an Event that names the flag.
func TestPrivilegedPods(t *testing.T) {
	f := newFullFixture(t)
	dir := f.newNodesDir(2)
	for node, flag := range map[string]string{"node-1": "--allow-privileged=false", "node-2": "--allow-privileged"} {
		startProgram(t, "trellis-cluster", "node", "--kubeconfig="+f.server.Kubeconfig, "--hostname-override="+node,
			"--port=0",
			"--root-dir="+filepath.Join(dir, ".trellis-cluster", node), "--image=busybox=/bin", flag)
	}
	for _, node := range []string{"node-1", "node-2"} {
		f.waitForNode(node)
		f.createPod("on-"+node, func(p *corev1.Pod) {
			p.Spec.NodeName = node
			c := &p.Spec.Containers[0]
			c.Image, c.Command, c.SecurityContext = "busybox", []string{"sleep",
				"infinity"}, &corev1.SecurityContext{Privileged: ptr.To(true)}
		})
	}
	f.waitForPod("default", "on-node-2")
	if e := f.waitForEvent("on-node-1", "FailedCreatePodSandBox"); !strings.Contains(e.Message,
		"start the node with --allow-privileged") {
		t.Errorf("got message %q, want one that names --allow-privileged", e.Message)
	}
}
