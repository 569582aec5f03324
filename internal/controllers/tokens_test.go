package controllers_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking"

	"github.com/trellis-k8s/trellis/testserver"
)

// TestTokenTracking checks that a new server publishes the date since which it records the last use of legacy tokens.
func TestTokenTracking(t *testing.T) {
	s := testserver.Start(t)
	maps := kubernetes.NewForConfigOrDie(s.Config).CoreV1().ConfigMaps(metav1.NamespaceSystem)
	w, err := maps.Watch(
		t.Context(),
		metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, legacytokentracking.ConfigMapName).
				String(),
		},
	)
	awaitEvent(t, w, err, func(_ watch.EventType, obj runtime.Object) bool {
		since := obj.(*corev1.ConfigMap).Data[legacytokentracking.ConfigMapDataKey]
		if _, err := time.Parse(time.DateOnly, since); err != nil {
			t.Error(err)
		}
		return true
	})
}
