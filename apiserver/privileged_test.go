package apiserver_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/apiserver"
)

// TestPrivilegedPods checks that two servers in one process have independent settings for privileged Pods, Pod
// templates and hostProcess containers. Each server also reports the other errors of these objects.
func TestPrivilegedPods(t *testing.T) {
	yes := true
	pod := func(name, image string, context *corev1.SecurityContext) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{HostNetwork: true,
				Containers: []corev1.Container{{Name: "c", Image: image, SecurityContext: context}}}}
	}
	privileged := &corev1.SecurityContext{Privileged: &yes}
	windows := &corev1.SecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{HostProcess: &yes}}
	allows := kubernetes.NewForConfigOrDie(start(t, apiserver.Config{}).ClientConfig())
	refuses := kubernetes.NewForConfigOrDie(start(t, apiserver.Config{DisallowPrivileged: true}).ClientConfig())
	create := func(c *kubernetes.Clientset, p *corev1.Pod) error {
		_, err := c.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
		return err
	}
	for name, context := range map[string]*corev1.SecurityContext{"privileged": privileged, "windows": windows} {
		if err := create(allows, pod(name, "i", context)); err != nil {
			t.Error(err)
		}
		if err := create(refuses, pod(name, "i", context)); !apierrors.IsInvalid(err) ||
			!strings.Contains(err.Error(), "disallowed by cluster policy") {
			t.Errorf("%s: %v", name, err)
		}
	}
	bad := pod("bad", "", privileged)
	if err := create(allows, bad); !apierrors.IsInvalid(err) || strings.Contains(err.Error(), "cluster policy") ||
		!strings.Contains(err.Error(), "spec.containers[0].image: Required value") {
		t.Errorf("a bad privileged Pod: %v", err)
	}
	const both = `[spec.containers[0].image: Required value, spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy]`
	if err := create(refuses, bad); err == nil || !strings.Contains(err.Error(), both) {
		t.Errorf("a bad privileged Pod: %v", err)
	}
	labels := map[string]string{"a": "b"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: pod("", "i", privileged).Spec}}}
	for c, refused := range map[*kubernetes.Clientset]bool{allows: false, refuses: true} {
		if _, err := c.AppsV1().Deployments("default").Create(t.Context(), deployment,
			metav1.CreateOptions{}); apierrors.IsInvalid(err) != refused {
			t.Errorf("a Deployment: %v", err)
		}
	}
}
