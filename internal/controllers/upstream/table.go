package upstream

import (
	"context"
	"maps"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	known "k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/certificates/approver"
	"k8s.io/kubernetes/pkg/controller/certificates/cleaner"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/endpoint"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"
	accounts "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/ttlafterfinished"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
)

// ClusterRoleAggregation is the name of the controller that copies the rules of ClusterRoles to the ClusterRoles that
// aggregate them.
const ClusterRoleAggregation = known.ClusterRoleAggregationController

// entry describes a controller of kube-controller-manager.
type entry struct {
	triggers []schema.GroupKind // the controller starts with the first object of one of these kinds
	create   func(context.Context, *Manager) (run func(context.Context), err error)
}

var (
	namespaceKind = schema.GroupKind{Kind: "Namespace"}
	serviceKind   = schema.GroupKind{Kind: "Service"}
	endpointsKind = schema.GroupKind{Kind: "Endpoints"}
	csrKind       = schema.GroupKind{Group: certificatesv1.GroupName, Kind: "CertificateSigningRequest"}
	policyKind    = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"}
)

// workers is the number of workers of a busy controller, as in kube-controller-manager. The limits of endpoints per
// slice in table are also kube-controller-manager's defaults.
const workers = 5

var table = map[string]entry{
	ClusterRoleAggregation: {
		[]schema.GroupKind{{Group: rbacv1.GroupName, Kind: "ClusterRole"}},
		func(_ context.Context, u *Manager) (func(context.Context), error) {
			roles := u.informers.Rbac().V1().ClusterRoles()
			return withWorkers(clusterroleaggregation.NewClusterRoleAggregation(roles, u.client.RbacV1()), 1, nil)
		},
	},
	known.ServiceAccountController: {
		[]schema.GroupKind{namespaceKind},
		func(ctx context.Context, u *Manager) (func(context.Context), error) {
			v1, options := u.informers.Core().V1(), accounts.DefaultServiceAccountsControllerOptions()
			c, err := accounts.NewServiceAccountsController(
				klog.FromContext(ctx), v1.ServiceAccounts(), v1.Namespaces(), u.client, options)
			return withWorkers(c, 1, err)
		},
	},
	known.ServiceAccountTokenController: {
		[]schema.GroupKind{{Kind: "Secret"}},
		func(ctx context.Context, u *Manager) (func(context.Context), error) {
			secrets := u.filteredInformers("type", string(corev1.SecretTypeServiceAccountToken)).Secrets()
			options := accounts.TokensControllerOptions{TokenGenerator: u.Tokens, RootCA: u.RootCA}
			c, err := accounts.NewTokensController(
				klog.FromContext(ctx), u.informers.Core().V1().ServiceAccounts(), secrets, u.client, options)
			return withWorkers(c, 1, err)
		},
	},
	known.RootCACertificatePublisherController: {
		[]schema.GroupKind{namespaceKind},
		func(_ context.Context, u *Manager) (func(context.Context), error) {
			maps := u.filteredInformers(metav1.ObjectNameField, rootcacertpublisher.RootCACertConfigMapName)
			c, err := rootcacertpublisher.NewPublisher(
				maps.ConfigMaps(), u.informers.Core().V1().Namespaces(), u.client, u.RootCA)
			return withWorkers(c, 1, err)
		},
	},
	known.ResourceQuotaController: {[]schema.GroupKind{{Kind: "ResourceQuota"}}, openQuotas},
	known.EndpointsController: {
		[]schema.GroupKind{serviceKind, endpointsKind},
		func(ctx context.Context, u *Manager) (func(context.Context), error) {
			v1 := u.informers.Core().V1()
			c := endpoint.NewEndpointController(ctx, v1.Pods(), v1.Services(), v1.Endpoints(), u.client, 0)
			return withWorkers(c, workers, nil)
		},
	},
	known.EndpointSliceController: {
		[]schema.GroupKind{serviceKind},
		func(ctx context.Context, u *Manager) (func(context.Context), error) {
			v1, slices := u.informers.Core().V1(), u.informers.Discovery().V1().EndpointSlices()
			c := endpointslice.NewController(ctx, v1.Pods(), v1.Services(), v1.Nodes(), slices, 100, u.client, 0)
			return withWorkers(c, workers, nil)
		},
	},
	known.EndpointSliceMirroringController: {
		[]schema.GroupKind{endpointsKind},
		func(ctx context.Context, u *Manager) (func(context.Context), error) {
			v1, slices := u.informers.Core().V1(), u.informers.Discovery().V1().EndpointSlices()
			c := endpointslicemirroring.NewController(ctx, v1.Endpoints(), slices, v1.Services(), 1000, u.client, 0)
			return withWorkers(c, workers, nil)
		},
	},
	known.CertificateSigningRequestApprovingController: {
		[]schema.GroupKind{csrKind},
		func(ctx context.Context, u *Manager) (func(context.Context), error) {
			requests := u.informers.Certificates().V1().CertificateSigningRequests()
			return withWorkers(approver.NewCSRApprovingController(ctx, u.client, requests), workers, nil)
		},
	},
	known.CertificateSigningRequestSigningController: {[]schema.GroupKind{csrKind}, openSigners},
	known.CertificateSigningRequestCleanerController: {
		[]schema.GroupKind{csrKind},
		func(_ context.Context, u *Manager) (func(context.Context), error) {
			requests := u.informers.Certificates().V1().CertificateSigningRequests()
			c := cleaner.NewCSRCleanerController(u.client.CertificatesV1().CertificateSigningRequests(), requests)
			return func(ctx context.Context) {
				// The cleaner does not wait until its cache is filled. With an empty cache it would do nothing until
				// its next run an hour later.
				if cache.WaitForCacheSync(ctx.Done(), requests.Informer().HasSynced) {
					c.Run(ctx, 1)
				}
			}, nil
		},
	},
	known.TTLAfterFinishedController: {
		[]schema.GroupKind{{Group: batchv1.GroupName, Kind: "Job"}},
		func(ctx context.Context, u *Manager) (func(context.Context), error) {
			return withWorkers(ttlafterfinished.New(ctx, u.informers.Batch().V1().Jobs(), u.client), workers, nil)
		},
	},
	known.ValidatingAdmissionPolicyStatusController: {
		[]schema.GroupKind{policyKind},
		func(_ context.Context, u *Manager) (func(context.Context), error) {
			discovery := u.client.Discovery()
			c, err := validatingadmissionpolicystatus.NewController(
				u.informers.Admissionregistration().V1().ValidatingAdmissionPolicies(),
				u.client.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
				&validating.TypeChecker{
					SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: discovery},
					RestMapper:     restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery)),
				})
			return withWorkers(c, workers, err)
		},
	},
}

// Names returns the sorted names of the controllers that the server can run.
func Names() []string { return slices.Sorted(maps.Keys(table)) }

// withWorkers returns a function that runs c with the given number of workers. It returns err unchanged.
func withWorkers(c interface{ Run(context.Context, int) }, workers int, err error) (func(context.Context), error) {
	return func(ctx context.Context) { c.Run(ctx, workers) }, err
}

// filteredInformers returns informers that cache only the objects whose field has the given value. All other objects
// may be numerous and large.
func (u *Manager) filteredInformers(field, value string) corev1informers.Interface {
	return core.New(u.informers, metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(field, value).String()
	}).V1()
}
