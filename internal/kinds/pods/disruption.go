package pods

import (
	"errors"
	"fmt"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/policy"
)

// A controller maintains the status of a PodDisruptionBudget. Each eviction decrements the number of allowed
// disruptions in this status.

// maxDisruptedPods is the maximum number of evictions that the controller has not processed yet.
const maxDisruptedPods = 2000

// disrupt records a disruption of the Pod in the budget's status. It returns an error if the budget does not allow it.
func disrupt(b *policy.PodDisruptionBudget, pod string, now time.Time) error {
	s := &b.Status
	switch {
	case s.ObservedGeneration < b.Generation:
		return denied(apierrors.NewTooManyRequests(wouldViolate, 10),
			"The disruption budget %s is still being processed by the server.", b.Name)
	case s.DisruptionsAllowed < 0:
		err := apierrors.NewForbidden(policy.Resource("poddisruptionbudget"), b.Name,
			errors.New("pdb disruptions allowed is negative"))
		return denied(err, "The disruption budget %s does not allow evicting pods currently: pdb disruptions "+
			"allowed is negative", b.Name)
	case len(s.DisruptedPods) > maxDisruptedPods:
		err := apierrors.NewForbidden(policy.Resource("poddisruptionbudget"), b.Name,
			errors.New("DisruptedPods map too big - too many evictions not confirmed by PDB controller"))
		return denied(err, "The disruption budget %s does not allow evicting pods currently: too many pending "+
			"evictions not confirmed by PDB controller", b.Name)
	case s.DisruptionsAllowed == 0:
		return exhausted(b)
	}
	if s.DisruptionsAllowed--; s.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
			Reason: policyv1.InsufficientPodsReason, ObservedGeneration: s.ObservedGeneration,
		})
	}
	if s.DisruptedPods == nil {
		s.DisruptedPods = map[string]metav1.Time{}
	}
	s.DisruptedPods[pod] = metav1.NewTime(now)
	return nil
}

const wouldViolate = "Cannot evict pod as it would violate the pod's disruption budget."

// exhausted returns the 429 error with the reason why a budget allows no disruptions.
func exhausted(b *policy.PodDisruptionBudget) error {
	err, s := apierrors.NewTooManyRequests(wouldViolate, 0), &b.Status
	c := meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition)
	explained := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
	switch {
	case explained && c.Reason == policyv1.SyncFailedReason: // the numbers in the status may be wrong
		return denied(err, "The disruption budget %s does not allow evicting pods currently because it failed sync: %s",
			b.Name, c.Message)
	case s.CurrentHealthy <= s.DesiredHealthy:
		return denied(err, "The disruption budget %s needs %d healthy pods and has %d currently", b.Name,
			s.DesiredHealthy, s.CurrentHealthy)
	case explained:
		return denied(err, "The disruption budget %s does not allow evicting pods currently (%s): %s", b.Name,
			c.Reason, c.Message)
	}
	return denied(err, "The disruption budget %s does not allow evicting pods currently", b.Name)
}

// denied adds a cause to err, with the reason why the budget denies the eviction. It returns err.
func denied(err *apierrors.StatusError, format string, args ...any) error {
	d := err.ErrStatus.Details
	d.Causes = append(d.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause,
		Message: fmt.Sprintf(format, args...)})
	return err
}
