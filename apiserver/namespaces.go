package apiserver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// namespacesInterval is the interval of the system namespaces controller, as in kube-apiserver.
const namespacesInterval = time.Minute

// systemNamespaces creates the missing system namespaces.
func (s *Server) systemNamespaces(ctx context.Context) error {
	client := s.client.CoreV1()
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic,
		corev1.NamespaceNodeLease} {
		_, err := client.Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = client.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
				metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) { // another server may have created it meanwhile
			return err
		}
	}
	return nil
}
