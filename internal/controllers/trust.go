package controllers

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
)

// RunAuthenticationTrust keeps the ConfigMap extension-apiserver-authentication in kube-system, by which extension API servers
// know this one and its users, until ctx is done
// (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer).
func RunAuthenticationTrust(ctx context.Context, config *rest.Config, info clusterauthenticationtrust.ClusterAuthenticationInfo) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for the ConfigMap of authentication: %w", err)
	}
	loop := clusterauthenticationtrust.NewClusterAuthenticationTrustController(info, client)
	for _, ca := range []interface {
		AddListener(dynamiccertificates.Listener)
	}{info.ClientCA, info.RequestHeaderCA} {
		ca.AddListener(loop)
	}
	loop.Run(ctx, 1)
	return nil
}
