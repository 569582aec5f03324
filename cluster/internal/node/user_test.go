package node

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestNonRootAnnotation checks the annotation that containers without runAsUser get. Its value depends on
// runAsNonRoot. Init containers, sidecars and ephemeral containers must have it too. The fields of a container must
// override those of its Pod.
func TestNonRootAnnotation(t *testing.T) {
	const annotation = "example.com/non-root"
	f := newFixture(t)
	f.user = 65532
	o := f.options("users")
	o.NonRootAnnotation = annotation
	f.start(o)
	f.readyNode("users")
	security := func(nonRoot *bool, user *int64) *corev1.SecurityContext {
		return &corev1.SecurityContext{RunAsNonRoot: nonRoot, RunAsUser: user}
	}
	yes, no := ptr.To(true), ptr.To(false)
	f.createPod("users", "main", func(s *corev1.PodSpec) {
		s.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: yes}
		add := func(list *[]corev1.Container, name string, c *corev1.SecurityContext) {
			*list = append(*list, corev1.Container{Name: name, Image: "example.com/main:1", SecurityContext: c})
		}
		add(&s.InitContainers, "sidecar", nil)
		s.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		add(&s.Containers, "may-be-root", security(no, nil))
		add(&s.Containers, "named", security(nil, ptr.To[int64](1000)))
		add(&s.Containers, "named-nonroot", security(yes, ptr.To[int64](65532)))
	})
	f.createPod("users", "plain")
	f.runningPod("main")
	f.runningPod("plain")
	added := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "added",
		Image: "example.com/main:1"}}
	pod, err := f.kube.CoreV1().Pods("default").Get(t.Context(), "main", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{added}
	if _, err := f.kube.CoreV1().Pods("default").UpdateEphemeralContainers(t.Context(), "main", pod,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually("all containers are created", func(context.Context) bool { return len(f.configsOf(pod)) == 6 })
	want := map[string]string{"main": "true", "sidecar": "true", "added": "true", "may-be-root": "false", "named": "",
		"named-nonroot": ""}
	for _, c := range f.configsOf(pod) {
		if got := c.Annotations[annotation]; got != want[c.Metadata.Name] {
			t.Errorf("%s: %q, want %q", c.Metadata.Name, got, want[c.Metadata.Name])
		}
		if user := c.Linux.SecurityContext.RunAsUser.GetValue(); want[c.Metadata.Name] == "true" && user != 65532 {
			t.Errorf("%s: the kubelet sends the user %d", c.Metadata.Name, user)
		}
	}
	if plain := f.configsOf(f.runningPod("plain")); plain[0].Annotations[annotation] != "false" {
		t.Errorf("a Pod without a security context: %v", plain[0].Annotations)
	}

	f.createPod("users", "root", func(s *corev1.PodSpec) {
		s.Containers[0].SecurityContext = security(yes,
			ptr.To[int64](0))
	})
	f.eventually("runAsNonRoot with runAsUser 0 is rejected", func(c context.Context) bool {
		pod, err := f.kube.CoreV1().Pods("default").Get(c, "root", metav1.GetOptions{})
		return err == nil && len(pod.Status.ContainerStatuses) == 1 &&
			pod.Status.ContainerStatuses[0].State.Waiting != nil &&
			pod.Status.ContainerStatuses[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
}
