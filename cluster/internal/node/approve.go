package node

import (
	"context"
	"crypto/x509"
	"net"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	typed "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	capi "k8s.io/kubernetes/pkg/apis/certificates"
)

// approver approves what one node asks for, in the name of who has started it. No controller does: whether an address is a node's
// only somebody who knows the node can tell.
type approver struct {
	client  typed.CertificateSigningRequestInterface
	node    string
	starter string
	address net.IP
}

func (a *approver) run(ctx context.Context) {
	see := func(o any) { a.see(ctx, o.(*certificatesv1.CertificateSigningRequest)) }
	_, requests := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return a.client.List(ctx, o) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return a.client.Watch(ctx, o)
			},
		},
		ObjectType: &certificatesv1.CertificateSigningRequest{},
		Handler:    cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, o any) { see(o) }},
	})
	requests.RunWithContext(ctx)
}

// see approves a request if it is this node's and nobody has decided. A conflict is followed by the change that it is about.
func (a *approver) see(ctx context.Context, request *certificatesv1.CertificateSigningRequest) {
	if len(request.Status.Conditions) > 0 || !a.approves(&request.Spec) {
		return
	}
	approved := request.DeepCopy()
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "NodeStarted",
		Message: a.starter + " has started this node",
	}}
	_, err := a.client.UpdateApproval(ctx, approved.Name, approved, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot approve the node's certificate: somebody else has to", "request", request.Name)
	}
}

// approves is true of the certificates that the kubelet of this node asks for, and of no other.
func (a *approver) approves(spec *certificatesv1.CertificateSigningRequestSpec) bool {
	request, err := capi.ParseCSR(spec.Request)
	if err != nil || request.Subject.CommonName != nodeUser(a.node) {
		return false
	}
	usages := sets.New[string]()
	for _, u := range spec.Usages {
		usages.Insert(string(u))
	}
	switch spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		return (spec.Username == a.starter || spec.Username == nodeUser(a.node)) && capi.IsKubeletClientCSR(request, sets.String(usages))
	case certificatesv1.KubeletServingSignerName:
		return spec.Username == nodeUser(a.node) && capi.IsKubeletServingCSR(request, sets.String(usages)) && a.hasNames(request)
	}
	return false
}

// hasNames is true if the names that a certificate is asked for are the node's.
func (a *approver) hasNames(request *x509.CertificateRequest) bool {
	other := func(ip net.IP) bool { return !ip.Equal(a.address) }
	return !slices.ContainsFunc(request.IPAddresses, other) && !slices.ContainsFunc(request.DNSNames, func(name string) bool { return name != a.node })
}
