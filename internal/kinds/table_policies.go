package kinds

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

	"github.com/trellis-k8s/trellis/internal/kinds/define"
)

// policies returns the kinds that extend admission, and PodCertificateRequest.
func policies(c Config) []define.Entry {
	v1, resources := versions{admissionv1.SchemeGroupVersion}, resolver.ResourceResolverFunc(c.resourceFor)
	validating := validatingadmissionpolicy.NewStrategy(c.Authorizer, resources)
	certificate := podcertificaterequest.NewStrategy()
	bound := policyLister{
		define.NewLister(c.Head, admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy")),
		define.NewLister(c.Head, admissionv1.SchemeGroupVersion.WithKind("MutatingAdmissionPolicy")),
	}
	return []define.Entry{
		{Kind: "MutatingAdmissionPolicy", Plural: "mutatingadmissionpolicies", Versions: v1, Categories: extensions,
			Main: mutatingadmissionpolicy.NewStrategy(c.Authorizer, resources)},
		{Kind: "MutatingAdmissionPolicyBinding", Plural: "mutatingadmissionpolicybindings", Versions: v1,
			Categories: extensions, Main: mutatingadmissionpolicybinding.NewStrategy(c.Authorizer, bound, resources)},
		{Kind: "MutatingWebhookConfiguration", Plural: "mutatingwebhookconfigurations", Versions: v1,
			Categories: extensions, Main: mutatingwebhookconfiguration.Strategy},
		{Kind: "ValidatingAdmissionPolicy", Plural: "validatingadmissionpolicies", Versions: v1, Categories: extensions,
			Main: validating, Status: validatingadmissionpolicy.NewStatusStrategy(validating)},
		{Kind: "ValidatingAdmissionPolicyBinding", Plural: "validatingadmissionpolicybindings", Versions: v1,
			Categories: extensions, Main: validatingadmissionpolicybinding.NewStrategy(c.Authorizer, bound, resources)},
		{Kind: "ValidatingWebhookConfiguration", Plural: "validatingwebhookconfigurations", Versions: v1,
			Categories: extensions, Main: validatingwebhookconfiguration.Strategy},
		{Kind: "PodCertificateRequest", Plural: "podcertificaterequests",
			Versions: versions{certificatesv1.SchemeGroupVersion}, Main: certificate,
			Status: podcertificaterequest.NewStatusStrategy(certificate, c.Authorizer, passiveClock{c.Now}),
			Fields: []string{"spec.signerName spec.podName spec.nodeName"}},
	}
}

// policyLister returns the policies that policy bindings refer to.
type policyLister struct{ validating, mutating define.Lister }

func (l policyLister) GetValidatingAdmissionPolicy(
	_ context.Context, name string,
) (*admissionregistration.ValidatingAdmissionPolicy, error) {
	return define.Internal[*admissionregistration.ValidatingAdmissionPolicy](l.validating, name)
}

func (l policyLister) GetMutatingAdmissionPolicy(
	_ context.Context, name string,
) (*admissionregistration.MutatingAdmissionPolicy, error) {
	return define.Internal[*admissionregistration.MutatingAdmissionPolicy](l.mutating, name)
}

// extensions is the category of the kinds that extend the API.
const extensions = "api-extensions"
