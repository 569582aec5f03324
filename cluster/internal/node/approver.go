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

// approver approves the CertificateSigningRequests of one node with the rights of the user that has started the node.
// No controller can approve them, because only this process knows whether an address belongs to the node.
type approver struct {
	client   typed.CertificateSigningRequestInterface
	nodeName string
	user     string
	address  net.IP
}

// run approves matching requests until ctx ends.
func (a *approver) run(ctx context.Context) {
	review := func(o any) { a.review(ctx, o.(*certificatesv1.CertificateSigningRequest)) }
	_, requests := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(
				ctx context.Context, o metav1.ListOptions,
			) (runtime.Object, error) {
				return a.client.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return a.client.Watch(ctx, o)
			},
		},
		ObjectType: &certificatesv1.CertificateSigningRequest{},
		Handler:    cache.ResourceEventHandlerFuncs{AddFunc: review, UpdateFunc: func(_, o any) { review(o) }},
	})
	requests.RunWithContext(ctx)
}

// review approves a request of this node that is neither approved nor denied. After a conflict, the informer delivers
// the changed request again.
func (a *approver) review(ctx context.Context, request *certificatesv1.CertificateSigningRequest) {
	if len(request.Status.Conditions) > 0 || !a.matches(&request.Spec) {
		return
	}
	approved := request.DeepCopy()
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "NodeStarted",
		Message: a.user + " has started this node",
	}}
	_, err := a.client.UpdateApproval(ctx, approved.Name, approved, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err,
			"Cannot approve the certificate request of the node. Another user must approve it", "request", request.Name)
	}
}

// matches reports whether a request is for a certificate that the kubelet of this node needs.
func (a *approver) matches(spec *certificatesv1.CertificateSigningRequestSpec) bool {
	request, err := capi.ParseCSR(spec.Request)
	if err != nil || request.Subject.CommonName != nodeUser(a.nodeName) {
		return false
	}
	usages := sets.New[string]()
	for _, u := range spec.Usages {
		usages.Insert(string(u))
	}
	switch spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		return (spec.Username == a.user || spec.Username == nodeUser(a.nodeName)) &&
			capi.IsKubeletClientCSR(request, sets.String(usages))
	case certificatesv1.KubeletServingSignerName:
		return spec.Username == nodeUser(a.nodeName) &&
			capi.IsKubeletServingCSR(request, sets.String(usages)) && a.hasNodeNames(request)
	}
	return false
}

// hasNodeNames reports whether a request contains no names and addresses except those of the node.
func (a *approver) hasNodeNames(request *x509.CertificateRequest) bool {
	otherIP := func(ip net.IP) bool { return !ip.Equal(a.address) }
	otherName := func(name string) bool { return name != a.nodeName }
	return !slices.ContainsFunc(request.IPAddresses, otherIP) && !slices.ContainsFunc(request.DNSNames, otherName)
}
