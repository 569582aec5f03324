package apiserver_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// TestAddressesAreRepaired checks that the server creates missing IPAddresses of Services. At the start it creates
// them before it is ready, so that no address can be allocated twice. While it runs, it creates a deleted IPAddress
// again. (EXT-020)
func TestAddressesAreRepaired(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	server := testserver.Start(t, testserver.OnDisk(), testserver.With(func(c *apiserver.Config) { c.Clock = clock }))
	services, addresses := clients(server)
	const n = 20
	for i := range n {
		if _, err := services.Create(t.Context(), serviceAt(i), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := addresses.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	server.Restart()
	services, addresses = clients(server)
	for i := range n {
		want := serviceAt(i)
		got, err := addresses.Get(t.Context(), want.Spec.ClusterIP, metav1.GetOptions{})
		if err != nil || *got.Spec.ParentRef != (networkingv1.ParentReference{Resource: "services",
			Namespace: "default", Name: want.Name}) {
			t.Fatal(got, err)
		}
		want.Name = "another"
		if _, err := services.Create(t.Context(), want, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("%s is allocated twice: %v", want.Spec.ClusterIP, err)
		}
	}
	if err := addresses.Delete(t.Context(), "10.0.0.2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	clock.Step(3 * time.Minute)
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			_, err := addresses.Get(ctx, "10.0.0.2", metav1.GetOptions{})
			return err == nil, nil
		})
	if err != nil {
		t.Error("the deleted IPAddress is not created again")
	}
}

func clients(s *testserver.Server) (corev1client.ServiceInterface, networkingv1client.IPAddressInterface) {
	client := kubernetes.NewForConfigOrDie(s.Config)
	return client.CoreV1().Services(metav1.NamespaceDefault), client.NetworkingV1().IPAddresses()
}

// serviceAt returns a Service with a name and a cluster IP that contain the number i.
func serviceAt(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s-", i)},
		Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprint("10.0.0.", i+2), Ports: []corev1.ServicePort{{Port: 80}}},
	}
}
