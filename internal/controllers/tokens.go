package controllers

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking"
)

// RunTokenTracking keeps the ConfigMap kube-apiserver-legacy-service-account-token-tracking in kube-system until ctx is done. It
// says since when the last use of tokens that do not end is written into their Secrets: kube-controller-manager's
// legacy-serviceaccount-token-cleaner deletes none without it.
func RunTokenTracking(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for the ConfigMap of tokens: %w", err)
	}
	legacytokentracking.NewController(client).RunWithContext(ctx)
	return nil
}
