package resource

import (
	"fmt"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestTypeMismatch checks that the first value that a Go type cannot decode is found at any depth, in lists, maps
// and embedded structs.
func TestTypeMismatch(t *testing.T) {
	pod := &GoType{New: func() runtime.Object { return &corev1.Pod{} }}
	hook := &GoType{New: func() runtime.Object { return &admissionv1.ValidatingWebhookConfiguration{} }}
	for _, c := range []struct {
		of   *GoType
		js   string
		want string
	}{
		{hook, `{"webhooks":[{},{"clientConfig":{"caBundle":"not base64!"}}]}`, "webhooks[1].clientConfig.caBundle"},
		{
			pod, `{"spec":{"containers":[{"name":"a"},{"resources":{"limits":{"cpu":"lots"}}}]}}`,
			"spec.containers[1].resources.limits[cpu]",
		},
		{pod, `{"metadata":{"creationTimestamp":"yesterday"}}`, "metadata.creationTimestamp"},
		{
			pod, `{"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":{}}}}]}}`,
			"spec.containers[0].livenessProbe.httpGet.port",
		},
		{pod, `{"spec":{"volumes":[{"name":"v","emptyDir":{"sizeLimit":"x"}}]}}`, "spec.volumes[0].emptyDir.sizeLimit"},
		{pod, `{"spec":{"hostNetwork":"yes"}}`, "spec.hostNetwork"},
		{pod, `{"spec":{"containers":{}}}`, "spec.containers"},
		{pod, `{"spec":{"containers":[{"name":"a"}],"unknown":{"a":1}}}`, "<nil>"},
	} {
		tree, _, err := object.DecodeJSON([]byte(c.js))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.of.TypeMismatch(tree)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.js, got, c.want)
		}
	}
}
