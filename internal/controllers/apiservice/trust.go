package apiservice

import (
	"context"

	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
)

// RunTrust updates the ConfigMap extension-apiserver-authentication in kube-system until ctx is done.
// Extension API servers read the ConfigMap to authenticate this server and its users
// (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer).
func RunTrust(
	ctx context.Context, client kubernetes.Interface, info clusterauthenticationtrust.ClusterAuthenticationInfo,
) {
	trust := clusterauthenticationtrust.NewClusterAuthenticationTrustController(info, client)
	info.ClientCA.AddListener(trust)
	info.RequestHeaderCA.AddListener(trust)
	trust.Run(ctx, 1)
}
