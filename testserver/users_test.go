package testserver_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/testserver"
)

// TestUsers checks that a user has only the permissions of its rules. It also checks that LeastRole returns a role
// with the permissions that the user needs.
func TestUsers(t *testing.T) {
	s := testserver.Start(t, testserver.Recording())
	jane := kubernetes.NewForConfigOrDie(s.User("jane", testserver.May("get,create", "configmaps"),
		testserver.May("get", "deployments.apps/status"))).CoreV1().ConfigMaps("default")
	if _, err := jane.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}},
		metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := jane.Get(t.Context(), "c", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := jane.Delete(t.Context(), "c", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("got %v", err)
	}
	joe := kubernetes.NewForConfigOrDie(s.User("joe"))
	if _, err := joe.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("got %v", err)
	}
	want := `rules:
- apiGroups:
  - ""
  resources:
  - configmaps
  verbs:
  - create
  - delete
  - get
`
	if got := s.LeastRole("jane"); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s", got)
	}
}
