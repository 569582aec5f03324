package controllers

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
)

// RunAuthenticationTrust updates the ConfigMap extension-apiserver-authentication in kube-system until ctx is done.
// Extension API servers read the ConfigMap to authenticate this server and its users
// (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer).
func RunAuthenticationTrust(
	ctx context.Context, config *rest.Config, info clusterauthenticationtrust.ClusterAuthenticationInfo,
) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client for ConfigMap extension-apiserver-authentication: %w", err)
	}
	trust := clusterauthenticationtrust.NewClusterAuthenticationTrustController(info, client)
	for _, ca := range []interface {
		AddListener(dynamiccertificates.Listener)
	}{info.ClientCA, info.RequestHeaderCA} {
		ca.AddListener(trust)
	}
	trust.Run(ctx, 1)
	return nil
}
