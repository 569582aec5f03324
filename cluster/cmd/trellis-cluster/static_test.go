package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// mainSchedulerManifest is kubeadm's manifest of the scheduler on a control-plane node, with another port. The
// parameters of this format are the path of the kubeconfig, the port, the image, additional flags, additional volume
// mounts, the path of the kubeconfig on the host, and additional volumes.
const mainSchedulerManifest = `apiVersion: v1
kind: Pod
metadata:
  labels: {component: kube-scheduler, tier: control-plane}
  name: kube-scheduler
  namespace: kube-system
spec:
  containers:
  - command:
    - kube-scheduler
    - --authentication-kubeconfig=%[1]s
    - --authorization-kubeconfig=%[1]s
    - --bind-address=127.0.0.1
    - --kubeconfig=%[1]s
    - --leader-elect=true
    - --secure-port=%[2]s%[4]s
    image: %[3]s
    imagePullPolicy: IfNotPresent
    livenessProbe:
      failureThreshold: 8
      httpGet: {host: 127.0.0.1, path: /livez, port: %[2]s, scheme: HTTPS}
      initialDelaySeconds: 10
      periodSeconds: 10
      timeoutSeconds: 15
    name: kube-scheduler
    readinessProbe:
      failureThreshold: 3
      httpGet: {host: 127.0.0.1, path: /readyz, port: %[2]s, scheme: HTTPS}
      periodSeconds: 1
      timeoutSeconds: 15
    resources: {requests: {cpu: 100m}}
    startupProbe:
      failureThreshold: 24
      httpGet: {host: 127.0.0.1, path: /livez, port: %[2]s, scheme: HTTPS}
      periodSeconds: 10
      timeoutSeconds: 15
    volumeMounts:
    - {mountPath: %[1]s, name: kubeconfig, readOnly: true}%[5]s
  hostNetwork: true
  priority: 2000001000
  priorityClassName: system-node-critical
  securityContext:
    seccompProfile: {type: RuntimeDefault}
  volumes:
  - hostPath: {path: %[6]s, type: FileOrCreate}
    name: kubeconfig%[7]s
status: {}
`

// TestMainSchedulerStaticPod checks that the main scheduler can run as a static Pod of the control-plane node. When
// the manifest changes, the image and the configuration of the scheduler must also change. SCD-038
func TestMainSchedulerStaticPod(t *testing.T) {
	f := newFullFixture(t)
	dir, port := f.newNodesDir(1), freePort(t)
	root := filepath.Join(dir, ".trellis-cluster", "node-1")
	self, err := os.Executable()
	f.must(err)
	program := filepath.Join(dir, "kube-scheduler")
	f.must(os.Symlink(self, program))
	manifests := filepath.Join(root, "manifests")
	write := func(image, flag, mount, volume string) {
		t.Helper()
		text := fmt.Sprintf(mainSchedulerManifest, "/etc/kubernetes/scheduler.conf", port, image, flag, mount,
			f.server.Kubeconfig, volume)
		temporary := filepath.Join(dir, "kube-scheduler.yaml")
		f.must(os.WriteFile(temporary, []byte(text), 0o600))
		f.must(os.Rename(temporary, filepath.Join(manifests, "kube-scheduler.yaml")))
	}
	f.must(os.MkdirAll(manifests, 0o700))
	write("registry.k8s.io/kube-scheduler:v1.37.1", "", "", "")
	startProgram(t, "trellis-cluster", "controllers", "--kubeconfig="+f.server.Kubeconfig, "--secure-port=0")
	startProgram(t, "trellis-cluster", "node", "--kubeconfig="+f.server.Kubeconfig, "--hostname-override=node-1",
		"--port=0", "--root-dir="+root, "--pod-manifest-path="+manifests,
		"--image=registry.k8s.io/kube-scheduler:v1.37.1="+program, "--image=example.com/other-scheduler:v1="+program)
	f.createPod("usual")
	f.waitForPod("default", "usual")
	first := f.waitForPod("kube-system", "kube-scheduler-node-1")
	if first.Annotations[corev1.MirrorPodAnnotationKey] == "" ||
		first.Spec.Containers[0].Image != "registry.k8s.io/kube-scheduler:v1.37.1" {
		t.Errorf("%+v", first)
	}

	f.createPod("new", withScheduler("another-profile"))
	configuration := filepath.Join(dir, "scheduler.yaml")
	f.must(os.WriteFile(configuration, []byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}
profiles: [{schedulerName: default-scheduler}, {schedulerName: another-profile}]
`), 0o600))
	const at = "/etc/kubernetes/scheduler.yaml"
	write("example.com/other-scheduler:v1", "\n    - --config="+at,
		"\n    - {mountPath: "+at+", name: config, readOnly: true}",
		"\n  - hostPath: {path: "+configuration+", type: File}\n    name: config")
	f.waitForPod("default", "new")
	if e := f.waitForEvent("new", "Scheduled"); e.ReportingController != "another-profile" {
		t.Errorf("%+v", e)
	}
	mirror := waitFor(f, f.CoreV1().Pods("kube-system"), "kube-scheduler-node-1",
		func(p *corev1.Pod) bool { return p.UID != first.UID && isReady(p) })
	if image := mirror.Spec.Containers[0].Image; image != "example.com/other-scheduler:v1" ||
		mirror.Status.ContainerStatuses[0].Image != image {
		t.Errorf("the mirror Pod has image %s, %+v", image, mirror.Status.ContainerStatuses)
	}
	f.createPod("usual-too")
	f.waitForPod("default", "usual-too")
}
