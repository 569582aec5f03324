package bootstrap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingapply "k8s.io/client-go/applyconfigurations/networking/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/kubernetes/pkg/controller/servicecidrs"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"

	"golang.org/x/sync/errgroup"
)

// EnsureServiceCIDR creates the default ServiceCIDR with the server's configured ranges. If the ServiceCIDR exists
// with only the first range, EnsureServiceCIDR adds the second one. upstream.RunServiceCIDRs does the same later, which
// is too late for clients that need an address at once. Another server may do the same at the same time.
func EnsureServiceCIDR(
	ctx context.Context, client networkingclient.NetworkingV1Interface, ranges []netip.Prefix,
) error {
	var cidrs []string
	for _, r := range ranges {
		cidrs = append(cidrs, r.String())
	}
	all := client.ServiceCIDRs()
	have, err := all.Get(ctx, defaultservicecidr.DefaultServiceCIDRName, metav1.GetOptions{})
	switch {
	case err == nil && len(cidrs) == 2 && slices.Equal(have.Spec.CIDRs, cidrs[:1]):
		have.Spec.CIDRs = cidrs
		_, err = all.Update(ctx, have, metav1.UpdateOptions{FieldManager: "kube-apiserver"})
		if apierrors.IsConflict(err) {
			return nil
		}
		return err
	case !apierrors.IsNotFound(err):
		return err
	}
	created := &networkingv1.ServiceCIDR{ // with the finalizer and the condition that the controller would add
		ObjectMeta: metav1.ObjectMeta{
			Name:       defaultservicecidr.DefaultServiceCIDRName,
			Finalizers: []string{servicecidrs.ServiceCIDRProtectionFinalizer},
		},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}
	_, err = all.Create(ctx, created, metav1.CreateOptions{FieldManager: "kube-apiserver"})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ready := metaapply.Condition().WithType(networkingv1.ServiceCIDRConditionReady).WithStatus(metav1.ConditionTrue).
		WithMessage("Kubernetes Service CIDR is ready").WithLastTransitionTime(metav1.Now())
	status := networkingapply.ServiceCIDRStatus().WithConditions(ready)
	options := metav1.ApplyOptions{FieldManager: "kubernetes-service-cidr-controller", Force: true}
	_, err = all.ApplyStatus(ctx, networkingapply.ServiceCIDR(created.Name).WithStatus(status), options)
	return err
}

// RepairAddresses deletes the wrong IPAddresses, given by name, and creates the missing ones.
func RepairAddresses(
	ctx context.Context, client networkingclient.NetworkingV1Interface, wrong []string,
	missing []*networkingv1.IPAddress,
) error {
	all := client.IPAddresses()
	for _, ip := range wrong {
		if err := all.Delete(ctx, ip, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete IPAddress %s: %w", ip, err)
		}
	}
	var creates errgroup.Group
	creates.SetLimit(maxConcurrentWrites)
	for _, address := range missing {
		creates.Go(func() error {
			_, err := all.Create(ctx, address, metav1.CreateOptions{FieldManager: "kube-apiserver"})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create IPAddress %s: %w", address.Name, err)
			}
			return nil
		})
	}
	return creates.Wait()
}
