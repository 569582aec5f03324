package apiserver_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/apiserver"
)

// TestCVE20243177 checks Pods whose service account may mount only certain Secrets. In every kind of container, such
// a Pod cannot refer to other Secrets with envFrom (CVE-2024-3177).
func TestCVE20243177(t *testing.T) {
	s := start(t, apiserver.Config{})
	client := kubernetes.NewForConfigOrDie(s.ClientConfig())
	ctx := context.Background()
	account := &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "strict",
			Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": "true"}},
		Secrets: []corev1.ObjectReference{{Name: "mine"}},
	}
	if _, err := client.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	from := func(secret string) []corev1.EnvFromSource {
		return []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: secret},
		}}}
	}
	plain := corev1.Container{Name: "c", Image: "i"}
	for name, spec := range map[string]corev1.PodSpec{
		"container": {Containers: []corev1.Container{{Name: "c", Image: "i", EnvFrom: from("other")}}},
		"init": {Containers: []corev1.Container{plain},
			InitContainers: []corev1.Container{{Name: "i", Image: "i", EnvFrom: from("other")}}},
	} {
		spec.ServiceAccountName = "strict"
		_, err := client.CoreV1().Pods("default").Create(ctx,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(),
			`envFrom referencing secret.secretName="other" is not allowed because service account strict does not reference that secret`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	allowed := corev1.PodSpec{ServiceAccountName: "strict",
		Containers: []corev1.Container{{Name: "c", Image: "i", EnvFrom: from("mine")}}}
	pod, err := client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "allowed"},
		Spec: allowed}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "i", EnvFrom: from("other")},
	}}
	if _, err := client.CoreV1().Pods("default").UpdateEphemeralContainers(ctx, "allowed", pod,
		metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "ephemeral container e with envFrom") {
		t.Errorf("ephemeral: %v", err)
	}
}

// TestCVE20232728 checks Pods whose service account may mount only certain Secrets. In every kind of container, such
// a Pod cannot refer to other Secrets with environment variables (CVE-2023-2728).
func TestCVE20232728(t *testing.T) {
	s := start(t, apiserver.Config{})
	client := kubernetes.NewForConfigOrDie(s.ClientConfig())
	ctx := context.Background()
	account := &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "strict",
			Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": "true"}},
	}
	if _, err := client.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	env := []corev1.EnvVar{{Name: "E", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "other"}, Key: "k",
	}}}}
	plain := corev1.Container{Name: "c", Image: "i"}
	for name, spec := range map[string]corev1.PodSpec{
		"container": {Containers: []corev1.Container{{Name: "c", Image: "i", Env: env}}},
		"init": {Containers: []corev1.Container{plain},
			InitContainers: []corev1.Container{{Name: "i", Image: "i", Env: env}}},
	} {
		spec.ServiceAccountName = "strict"
		_, err := client.CoreV1().Pods("default").Create(ctx,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(),
			`because service account strict does not reference that secret`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	pod, err := client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{ServiceAccountName: "strict",
			Containers: []corev1.Container{plain}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "i", Env: env},
	}}
	_, err = client.CoreV1().Pods("default").UpdateEphemeralContainers(ctx, "p", pod, metav1.UpdateOptions{})
	// 500, as upstream
	if err == nil || !strings.Contains(err.Error(),
		`ephemeral container e with envVar E referencing secret.secretName="other" is not allowed`) {
		t.Errorf("ephemeral: %v", err)
	}
}
