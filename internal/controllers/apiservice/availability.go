package apiservice

import (
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"github.com/trellis-k8s/trellis/internal/controllers/report"
)

// neverAvailable is a condition of an APIService whose API server has not been available since the APIService was
// created. The condition is an extension of Trellis, and is stored so that it survives restarts. The deletion of a
// namespace does not wait for an APIService with the condition (kubernetes#60807). An APIService without the condition
// may have been available earlier.
const neverAvailable apiregistrationv1.APIServiceConditionType = "NeverAvailable"

// recordAvailability adds or removes the condition neverAvailable of s. It is listed after the condition Available,
// because clients expect Available to be the first condition. The parameter first reports two facts: the condition
// Available is new, and this process was running when s was created.
func recordAvailability(s *apiregistrationv1.APIService, available, first bool) {
	switch {
	case available:
		isNeverAvailable := func(c apiregistrationv1.APIServiceCondition) bool { return c.Type == neverAvailable }
		s.Status.Conditions = slices.DeleteFunc(s.Status.Conditions, isNeverAvailable)
	case first:
		helper.SetAPIServiceCondition(s, apiregistrationv1.APIServiceCondition{
			Type: neverAvailable, Status: apiregistrationv1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Reason: "NotAvailableSinceCreation",
			Message: "the API server has not been available since the APIService was created; " +
				"deleted namespaces do not wait for it",
		})
	}
}

// HasNoNamespacedObjects reports whether it is certain that no namespaced object exists at gv. The API server of gv is
// not available. The result is true if the API server has never been available. It is also true if the last known
// resources include no namespaced resource whose objects can be deleted.
func (a *Controller) HasNoNamespacedObjects(gv schema.GroupVersion, apiService *unstructured.Unstructured) bool {
	a.mu.Lock()
	local, reported := slices.Contains(a.local.Find(gv.Group), gv), a.conditions[apiService.GetName()]
	a.mu.Unlock()
	if local { // gv belongs to a CRD, whose objects are served again after the APIService is deleted
		return false
	}
	if report.IsTrue(apiService, string(neverAvailable)) &&
		!(reported.uid == apiService.GetUID() && reported.Available) {
		return true
	}
	if a.LastResources == nil {
		return false
	}
	last := a.LastResources(apiService.GetUID(), apiService.GetName())
	return last != nil && !slices.ContainsFunc(last.Resources, func(r apidiscoveryv2.APIResourceDiscovery) bool {
		return r.Scope == apidiscoveryv2.ScopeNamespace &&
			(slices.Contains(r.Verbs, "delete") || slices.Contains(r.Verbs, "deletecollection"))
	})
}
