// Package accounts issues the tokens of service accounts, and reads the objects that the claims of tokens refer to.
package accounts

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// accounts reads the current state of the objects that the claims of service account tokens refer to.
type accounts struct{ serviceAccounts, pods, secrets, nodes, validating, mutating define.Lister }

// TokenGetter returns a getter of the objects that the claims of service account tokens refer to. The function head
// returns the state that the getter reads.
func TokenGetter(head func() *storage.Snapshot) serviceaccount.ServiceAccountTokenGetter {
	return newAccounts(head)
}

func newAccounts(head func() *storage.Snapshot) *accounts {
	of := func(gv schema.GroupVersion, kind string) define.Lister {
		return define.NewLister(head, gv.WithKind(kind))
	}
	core, admission := corev1.SchemeGroupVersion, admissionv1.SchemeGroupVersion
	a := &accounts{
		serviceAccounts: of(core, "ServiceAccount"), pods: of(core, "Pod"), secrets: of(core, "Secret"),
		nodes: of(core, "Node"), validating: of(admission, "ValidatingWebhookConfiguration"),
		mutating: of(admission, "MutatingWebhookConfiguration"),
	}
	a.nodes.Prefix = "/registry/minions/"
	return a
}

// GetServiceAccount and the methods below implement serviceaccount.ServiceAccountTokenGetter.
func (a *accounts) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return define.External[*corev1.ServiceAccount](a.serviceAccounts, namespace+"/"+name)
}

func (a *accounts) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	return define.External[*corev1.Pod](a.pods, namespace+"/"+name)
}

func (a *accounts) GetSecret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	return define.External[*corev1.Secret](a.secrets, namespace+"/"+name)
}

func (a *accounts) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return define.External[*corev1.Node](a.nodes, name)
}

func (a *accounts) GetValidatingWebhookConfiguration(
	_ context.Context, name string,
) (*admissionv1.ValidatingWebhookConfiguration, error) {
	return define.External[*admissionv1.ValidatingWebhookConfiguration](a.validating, name)
}

func (a *accounts) GetMutatingWebhookConfiguration(
	_ context.Context, name string,
) (*admissionv1.MutatingWebhookConfiguration, error) {
	return define.External[*admissionv1.MutatingWebhookConfiguration](a.mutating, name)
}
