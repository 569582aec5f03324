package apiserver_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
)

// TestQuotaOfExtendedResource checks a ResourceQuota of an extended resource. It also counts the devices of
// ResourceClaims if their DeviceClass declares the resource. It counts them as soon as the class is written. If a Pod
// requests the resource, the quota counts the Pod and ignores its first claim.
func TestQuotaOfExtendedResource(t *testing.T) {
	ctx := t.Context()
	c := kubernetes.NewForConfigOrDie(start(t, apiserver.Config{Controllers: []string{"resourcequota-controller"},
		Admission: plugins.Options{Disable: []string{"ServiceAccount"}}}).Loopback())
	const name = "requests.example.com/copper"
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{name: resource.MustParse("1")}}}
	if _, err := c.CoreV1().ResourceQuotas("default").Create(ctx, quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			q, err := c.CoreV1().ResourceQuotas("default").Get(ctx, "q", metav1.GetOptions{})
			return err == nil && len(q.Status.Used) == 1, err
		}); err != nil {
		t.Fatal(err)
	}
	claim := func(name string, of *corev1.Pod, refused bool) {
		t.Helper()
		o := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
				Requests: []resourcev1.DeviceRequest{{Name: "r",
					Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "copper", Count: 1}}}}}}
		if of != nil {
			o.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
			o.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(of,
				corev1.SchemeGroupVersion.WithKind("Pod"))}
		}
		_, err := c.ResourceV1().ResourceClaims("default").Create(ctx, o, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) != refused || err != nil && !refused {
			t.Errorf("claim %s: %v", name, err)
		}
	}
	extended := "example.com/copper"
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "copper"},
		Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: &extended}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"example.com/copper": resource.MustParse("1")},
				Limits:   corev1.ResourceList{"example.com/copper": resource.MustParse("1")}}}}}}
	pod, err := c.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim("before", nil, false) // the class does not exist yet
	if _, err := c.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim("free", nil, true)
	claim("first", pod, false)
	claim("second", pod, true)
	if err := c.ResourceV1().DeviceClasses().Delete(ctx, "copper", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	claim("after", nil, false)
}
