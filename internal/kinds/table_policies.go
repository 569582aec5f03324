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

// policies is the kinds that extend admission, and the one that asks who may sign.
func policies(c Config) []line {
	v1, resources := versions{admissionv1.SchemeGroupVersion}, resolver.ResourceResolverFunc(c.serving)
	validating := validatingadmissionpolicy.NewStrategy(c.Authorizer, resources)
	certificate := podcertificaterequest.NewStrategy()
	bound := policyLister{
		c.lister(admissionv1.SchemeGroupVersion, "ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
		c.lister(admissionv1.SchemeGroupVersion, "MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
	}
	return []line{
		{kind: "MutatingAdmissionPolicy", plural: "mutatingadmissionpolicies", at: v1, categories: extensions, main: mutatingadmissionpolicy.NewStrategy(c.Authorizer, resources)},
		{kind: "MutatingAdmissionPolicyBinding", plural: "mutatingadmissionpolicybindings", at: v1, categories: extensions, main: mutatingadmissionpolicybinding.NewStrategy(c.Authorizer, bound, resources)},
		{kind: "MutatingWebhookConfiguration", plural: "mutatingwebhookconfigurations", at: v1, categories: extensions, main: mutatingwebhookconfiguration.Strategy},
		{kind: "ValidatingAdmissionPolicy", plural: "validatingadmissionpolicies", at: v1, categories: extensions, main: validating, status: validatingadmissionpolicy.NewStatusStrategy(validating)},
		{kind: "ValidatingAdmissionPolicyBinding", plural: "validatingadmissionpolicybindings", at: v1, categories: extensions, main: validatingadmissionpolicybinding.NewStrategy(c.Authorizer, bound, resources)},
		{kind: "ValidatingWebhookConfiguration", plural: "validatingwebhookconfigurations", at: v1, categories: extensions, main: validatingwebhookconfiguration.Strategy},
		{kind: "PodCertificateRequest", plural: "podcertificaterequests", at: versions{certificatesv1.SchemeGroupVersion}, main: certificate, status: podcertificaterequest.NewStatusStrategy(certificate, c.Authorizer, passive{c.Now}), fields: []string{"spec.signerName spec.podName spec.nodeName"}},
	}
}

// extensions is the category of what extends the API.
const extensions = "api-extensions"
