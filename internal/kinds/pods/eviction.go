package pods

import (
	"fmt"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Eviction returns the subresource that deletes a Pod if its PodDisruptionBudget allows it
// (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/).
func Eviction(now func() time.Time, head func() *storage.Snapshot) resource.Subresource {
	body := define.PostOnly(policyv1.SchemeGroupVersion, resource.Names{Kind: "Eviction", Plural: "evictions"})
	e := evictor{now, define.NewLister(head, policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"))}
	return resource.Subresource{
		Name: "eviction", Verbs: body.Definition.Verbs, Body: body,
		AlternateAPIVersion: policyv1beta1.SchemeGroupVersion.String(), Check: checkEviction, Delete: e.evict,
	}
}

func checkEviction(name string, body resource.Internal) error {
	e := body.(*policy.Eviction)
	if e.Name != name {
		return apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	if o := e.DeleteOptions; o != nil && o.IgnoreStoreReadErrorWithClusterBreakingPotential != nil &&
		*o.IgnoreStoreReadErrorWithClusterBreakingPotential {
		return apierrors.NewInvalid(policyv1.SchemeGroupVersion.WithKind("Eviction").GroupKind(), name,
			field.ErrorList{field.Invalid(
				field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true,
				"can not be set for pod eviction, try after removing the option")})
	}
	return nil
}

// evictor decides whether Pods may be evicted.
type evictor struct {
	now     func() time.Time
	budgets define.Lister
}

// evict returns the deletion of a Pod that is evicted, as upstream's EvictionREST does. If the eviction is a
// disruption, the deletion includes the update of the Pod's budget.
func (e evictor) evict(
	stored *storage.Snapshot, obj, body resource.Internal, dryRun bool,
) (d resource.Deletion, err error) {
	pod := obj.(*core.Pod)
	if d.Options, err = evictionOptions(body.(*policy.Eviction), dryRun); err != nil {
		return d, err
	}
	if needsBudget(pod) {
		if d.Related, err = e.disruption(stored, pod); err != nil {
			return d, err
		}
		d.Guards = []storage.Guard{{Key: e.budgets.Prefix + pod.Namespace + "/", Prefix: true,
			Revision: stored.Revision()}}
	}
	podutil.UpdatePodCondition(&pod.Status, &core.PodCondition{
		Type: core.DisruptionTarget, Status: core.ConditionTrue, Reason: "EvictionByEvictionAPI",
		Message: "Eviction API: evicting",
	})
	return d, nil
}

// evictionOptions returns the options of the deletion. Both the request and the Eviction may specify a dry run.
func evictionOptions(e *policy.Eviction, dryRun bool) (o metav1.DeleteOptions, err error) {
	if e.DeleteOptions != nil {
		o = *e.DeleteOptions
	}
	dryRunAll := []string{metav1.DryRunAll}
	switch {
	case !dryRun:
	case len(o.DryRun) == 0:
		o.DryRun = dryRunAll
	case !slices.Equal(o.DryRun, dryRunAll):
		//lint:ignore ST1005 upstream's words
		err = fmt.Errorf("Non-matching dry-run options in request and content: %v and %v", dryRunAll, o.DryRun)
	}
	return o, err
}

// needsBudget reports whether the eviction of a Pod is a disruption. This is the case if the Pod runs and is not
// being deleted.
func needsBudget(p *core.Pod) bool {
	return p.Status.Phase != core.PodSucceeded && p.Status.Phase != core.PodFailed &&
		p.Status.Phase != core.PodPending && p.DeletionTimestamp.IsZero()
}

// disruption returns the update of the Pod's budget, or nil if the Pod has no budget to update.
func (e evictor) disruption(stored *storage.Snapshot, pod *core.Pod) (*resource.RelatedWrite, error) {
	budgets, err := e.budgetsFor(stored, pod)
	switch {
	case err != nil || len(budgets) == 0:
		return nil, err
	case len(budgets) > 1:
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 500,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does " +
				"not support."}}
	case !podutil.IsPodReady(pod) && allowsUnhealthyEviction(budgets[0]):
		return nil, nil
	}
	return &resource.RelatedWrite{
		Endpoint: resource.Endpoint{Resource: policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"),
			Subresource: "status"},
		Name: budgets[0].Name,
		Do: func(obj resource.Internal) error {
			return disrupt(obj.(*policy.PodDisruptionBudget), pod.Name, e.now())
		},
	}, nil
}

// budgetsFor returns the budgets that select a Pod.
func (e evictor) budgetsFor(stored *storage.Snapshot, pod *core.Pod) (all []*policy.PodDisruptionBudget, err error) {
	for rec := range stored.Walk(e.budgets.Prefix+pod.Namespace+"/", "") {
		b, err := define.Load[*policy.PodDisruptionBudget](e.budgets, rec)
		if err != nil {
			return nil, err
		}
		if s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && s.Matches(labels.Set(pod.Labels)) {
			all = append(all, b)
		}
	}
	return all, nil
}

// allowsUnhealthyEviction reports whether the eviction of an unready Pod is allowed and does not count as a
// disruption.
func allowsUnhealthyEviction(b *policy.PodDisruptionBudget) bool {
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policy.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}
