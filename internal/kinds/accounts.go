package kinds

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// accounts reads the current state of the objects that the claims of service account tokens refer to.
type accounts struct{ serviceAccounts, pods, secrets, nodes, validating, mutating lister }

// TokenGetter returns a getter of the objects that the claims of service account tokens refer to. The function head
// returns the state that the getter reads.
func TokenGetter(head func() *storage.Snapshot) serviceaccount.ServiceAccountTokenGetter {
	return newAccounts(head)
}

func newAccounts(head func() *storage.Snapshot) *accounts {
	c := Config{Head: head}
	of := func(gv schema.GroupVersion, kind, plural string) lister { return c.lister(gv, kind, plural) }
	return &accounts{
		serviceAccounts: of(corev1.SchemeGroupVersion, "ServiceAccount", "serviceaccounts"),
		pods:            of(corev1.SchemeGroupVersion, "Pod", "pods"),
		secrets:         of(corev1.SchemeGroupVersion, "Secret", "secrets"),
		nodes: lister{c.Head, corev1.Resource("nodes"), "/registry/minions/",
			typeAt(corev1.SchemeGroupVersion, resource.Names{Kind: "Node", ListKind: "NodeList"})},
		validating: of(admissionv1.SchemeGroupVersion, "ValidatingWebhookConfiguration",
			"validatingwebhookconfigurations"),
		mutating: of(admissionv1.SchemeGroupVersion, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
	}
}

// externalOf returns the object name of the kind that l reads, as the Go type of the storage version.
func externalOf[T runtime.Object](l lister, name string) (out T, err error) {
	rec, err := l.record(name)
	if err != nil {
		return out, err
	}
	obj, err := l.goType.Object(rec.Value)
	if err != nil {
		return out, err
	}
	return obj.(T), nil
}

// GetServiceAccount and the methods below implement serviceaccount.ServiceAccountTokenGetter.
func (a *accounts) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return externalOf[*corev1.ServiceAccount](a.serviceAccounts, namespace+"/"+name)
}

func (a *accounts) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	return externalOf[*corev1.Pod](a.pods, namespace+"/"+name)
}

func (a *accounts) GetSecret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	return externalOf[*corev1.Secret](a.secrets, namespace+"/"+name)
}

func (a *accounts) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return externalOf[*corev1.Node](a.nodes, name)
}

func (a *accounts) GetValidatingWebhookConfiguration(
	_ context.Context, name string,
) (*admissionv1.ValidatingWebhookConfiguration, error) {
	return externalOf[*admissionv1.ValidatingWebhookConfiguration](a.validating, name)
}

func (a *accounts) GetMutatingWebhookConfiguration(
	_ context.Context, name string,
) (*admissionv1.MutatingWebhookConfiguration, error) {
	return externalOf[*admissionv1.MutatingWebhookConfiguration](a.mutating, name)
}
