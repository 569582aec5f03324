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
	serversLease  = "trellis-serve"           // in kube-system, held by API servers of Trellis as long as they are there
	theirsAre     = "trellis.dev/controllers" // its annotation that names the controllers which they run
	lookForServer = time.Second
)

// servers returns the names of the controllers that the API server runs by itself. It waits until the server is ready, or
// refuses who asks.
func servers(ctx context.Context, client kubernetes.Interface) (names []string, err error) {
	err = wait.PollUntilContextCancel(ctx, lookForServer, true, func(ctx context.Context) (bool, error) {
		ready, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			klog.FromContext(ctx).Error(err, "Waiting for the API server", "answer", string(ready))
			return false, nil
		}
		lease, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, serversLease, metav1.GetOptions{})
		switch {
		case err == nil:
			known := app.KnownControllers()
			names = strings.Split(lease.Annotations[theirsAre], ",")
			names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(known, name) })
			return true, nil
		case apierrors.IsNotFound(err):
			return true, nil
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return false, err
		}
		klog.FromContext(ctx).Error(err, "The API server does not answer yet")
		return false, nil
	})
	return names, err
}
