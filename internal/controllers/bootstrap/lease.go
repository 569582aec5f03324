package bootstrap

import (
	"context"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	serverLease           = "trellis-serve"
	controllersAnnotation = "trellis.dev/controllers"
)

// writeControllersLease writes the names of the running controllers into an annotation of a Lease. Other
// programs, such as trellis-cluster, do not run these controllers. The server need not renew the Lease, because no
// client can read the Lease while the server is not running.
func (b *bootstrap) writeControllersLease(ctx context.Context, names []string) {
	next := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: serverLease, Annotations: map[string]string{controllersAnnotation: strings.Join(names, ",")},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(serverLease)},
	}
	leases := b.client.CoordinationV1().Leases(metav1.NamespaceSystem)
	b.reconcile(serverLease, func() error {
		was, err := leases.Get(ctx, serverLease, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, err = leases.Create(ctx, next, metav1.CreateOptions{})
		case err == nil && was.Annotations[controllersAnnotation] != next.Annotations[controllersAnnotation]:
			was.Annotations, was.Spec = next.Annotations, next.Spec
			_, err = leases.Update(ctx, was, metav1.UpdateOptions{})
		}
		return err
	})
}
