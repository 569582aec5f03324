package kinds

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/certificates/podcertificaterequest"
)

// policies returns the kinds that extend admission, and PodCertificateRequest.
func policies(c Config) []entry {
	v1, resources := versions{admissionv1.SchemeGroupVersion}, resolver.ResourceResolverFunc(c.resourceFor)
	validating := validatingadmissionpolicy.NewStrategy(c.Authorizer, resources)
	certificate := podcertificaterequest.NewStrategy()
	bound := policyLister{
		c.lister(admissionv1.SchemeGroupVersion, "ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
		c.lister(admissionv1.SchemeGroupVersion, "MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
	}
	return []entry{
		{kind: "MutatingAdmissionPolicy", plural: "mutatingadmissionpolicies", versions: v1, categories: extensions,
			main: mutatingadmissionpolicy.NewStrategy(c.Authorizer, resources)},
		{kind: "MutatingAdmissionPolicyBinding", plural: "mutatingadmissionpolicybindings", versions: v1,
			categories: extensions, main: mutatingadmissionpolicybinding.NewStrategy(c.Authorizer, bound, resources)},
		{kind: "MutatingWebhookConfiguration", plural: "mutatingwebhookconfigurations", versions: v1,
			categories: extensions, main: mutatingwebhookconfiguration.Strategy},
		{kind: "ValidatingAdmissionPolicy", plural: "validatingadmissionpolicies", versions: v1, categories: extensions,
			main: validating, status: validatingadmissionpolicy.NewStatusStrategy(validating)},
		{kind: "ValidatingAdmissionPolicyBinding", plural: "validatingadmissionpolicybindings", versions: v1,
			categories: extensions, main: validatingadmissionpolicybinding.NewStrategy(c.Authorizer, bound, resources)},
		{kind: "ValidatingWebhookConfiguration", plural: "validatingwebhookconfigurations", versions: v1,
			categories: extensions, main: validatingwebhookconfiguration.Strategy},
		{kind: "PodCertificateRequest", plural: "podcertificaterequests",
			versions: versions{certificatesv1.SchemeGroupVersion}, main: certificate,
			status: podcertificaterequest.NewStatusStrategy(certificate, c.Authorizer, passiveClock{c.Now}),
			fields: []string{"spec.signerName spec.podName spec.nodeName"}},
	}
}

// extensions is the category of the kinds that extend the API.
const extensions = "api-extensions"
