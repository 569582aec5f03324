package upstream

import (
	"context"

	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking"
)

// RunTokenTracking updates the ConfigMap kube-apiserver-legacy-service-account-token-tracking in kube-system until ctx
// is done. The server records the last use of a legacy token in its Secret. The ConfigMap contains the date since
// which the server has done so. kube-controller-manager's legacy-serviceaccount-token-cleaner deletes Secrets only if
// the ConfigMap exists.
func RunTokenTracking(ctx context.Context, client kubernetes.Interface) {
	legacytokentracking.NewController(client).RunWithContext(ctx)
}
