package controllers

import (
	"context"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

const (
	// serverLease is the name of the Lease in kube-system that running Trellis API servers hold.
	serverLease = "trellis-serve"
	// controllersAnnotation is an annotation of serverLease. It contains the names of the controllers that these
	// servers run.
	controllersAnnotation = "trellis.dev/controllers"
	pollInterval          = time.Second
)

// controllersOfServer returns the names of the controllers that the API server runs. It blocks until the server is
// ready. It returns an error if the server does not authenticate the client, or does not permit it to read the Lease.
func controllersOfServer(ctx context.Context, client kubernetes.Interface) (names []string, err error) {
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		ready, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			klog.FromContext(ctx).Error(err, "Waiting for the API server", "answer", string(ready))
			return false, nil
		}
		lease, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, serverLease, metav1.GetOptions{})
		switch {
		case err == nil:
			known := app.KnownControllers()
			names = strings.Split(lease.Annotations[controllersAnnotation], ",")
			names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(known, name) })
			return true, nil
		case apierrors.IsNotFound(err):
			return true, nil
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return false, err
		}
		klog.FromContext(ctx).Error(err, "Waiting for the API server")
		return false, nil
	})
	return names, err
}
