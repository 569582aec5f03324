package upstream

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/certificates/podcertificaterequest"
)

// policies is the kinds that extend admission, and the one that asks who may sign.
func policies(c Config) []line {
	v1, resources := versions{admissionv1.SchemeGroupVersion}, resolver.ResourceResolverFunc(c.Resource)
	validating := validatingadmissionpolicy.NewStrategy(c.Authorizer, resources)
	certificate := podcertificaterequest.NewStrategy()
	return []line{
		{kind: "MutatingAdmissionPolicy", plural: "mutatingadmissionpolicies", at: v1, categories: extensions, main: mutatingadmissionpolicy.NewStrategy(c.Authorizer, resources)},
		{kind: "MutatingAdmissionPolicyBinding", plural: "mutatingadmissionpolicybindings", at: v1, categories: extensions, main: mutatingadmissionpolicybinding.NewStrategy(c.Authorizer, policyReader(c), resources)},
		{kind: "MutatingWebhookConfiguration", plural: "mutatingwebhookconfigurations", at: v1, categories: extensions, main: mutatingwebhookconfiguration.Strategy},
		{kind: "ValidatingAdmissionPolicy", plural: "validatingadmissionpolicies", at: v1, categories: extensions, main: validating, status: validatingadmissionpolicy.NewStatusStrategy(validating)},
		{kind: "ValidatingAdmissionPolicyBinding", plural: "validatingadmissionpolicybindings", at: v1, categories: extensions, main: validatingadmissionpolicybinding.NewStrategy(c.Authorizer, policyReader(c), resources)},
		{kind: "ValidatingWebhookConfiguration", plural: "validatingwebhookconfigurations", at: v1, categories: extensions, main: validatingwebhookconfiguration.Strategy},
		{kind: "PodCertificateRequest", plural: "podcertificaterequests", at: versions{certificatesv1.SchemeGroupVersion}, main: certificate, status: podcertificaterequest.NewStatusStrategy(certificate, c.Authorizer, c.Clock)},
	}
}

const extensions = "api-extensions"

// policyReader finds the policies that bindings name.
type policyReader Config

func (r policyReader) GetValidatingAdmissionPolicy(ctx context.Context, name string) (*admissionregistration.ValidatingAdmissionPolicy, error) {
	return r.ValidatingPolicy(ctx, name)
}

func (r policyReader) GetMutatingAdmissionPolicy(ctx context.Context, name string) (*admissionregistration.MutatingAdmissionPolicy, error) {
	return r.MutatingPolicy(ctx, name)
}
