package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
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

// startedBefore reports whether the controller was already running at t, which is a creation time in whole seconds.
func (a *APIServices) startedBefore(t time.Time) bool {
	return !t.Before(a.started.Truncate(time.Second))
}

// hasNoNamespacedObjects reports whether it is certain that no namespaced object exists at gv. The API server of gv is
// not available. The result is true if the API server has never been available. It is also true if the last known
// resources include no namespaced resource whose objects can be deleted.
func (a *APIServices) hasNoNamespacedObjects(gv schema.GroupVersion, apiService *unstructured.Unstructured) bool {
	a.mu.Lock()
	local, reported := slices.Contains(a.local.Find(gv.Group), gv), a.conditions[apiService.GetName()]
	a.mu.Unlock()
	if local { // gv belongs to a CRD, whose objects are served again after the APIService is deleted
		return false
	}
	if isConditionTrue(apiService, string(neverAvailable)) &&
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

// blockedError is a failure of discovery that blocks the deletion of a namespace. The namespace may have objects of
// the failed APIServices.
type blockedError struct {
	error
	services []string // by name
}

// Error returns the message of the failure and the names of the APIServices.
func (e *blockedError) Error() string {
	return fmt.Sprintf("%v; waiting for APIService %s: make its API server available, "+
		"or delete the APIService if its objects in this namespace are no longer needed",
		e.error, strings.Join(e.services, ", "))
}

// Unwrap returns the failure of discovery.
func (e *blockedError) Unwrap() error { return e.error }

// blockingFailures removes the group versions that cannot have namespaced objects from err, which is a failure of
// discovery. It returns nil if no group version remains.
func (n *namespaceController) blockingFailures(ctx context.Context, err error) error {
	failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err)
	if !ok {
		return err
	}
	failed = maps.Clone(failed)
	services := n.clients.dynamic.Resource(apiregistrationv1.SchemeGroupVersion.WithResource("apiservices"))
	var names []string
	for gv := range failed {
		apiService, err := services.Get(ctx, gv.Version+"."+gv.Group, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return errors.Join(&discovery.ErrGroupDiscoveryFailed{Groups: failed}, err)
		case n.services.hasNoNamespacedObjects(gv, apiService):
			delete(failed, gv)
		default:
			names = append(names, apiService.GetName())
		}
	}
	if len(failed) == 0 {
		return nil
	}
	slices.Sort(names)
	return &blockedError{&discovery.ErrGroupDiscoveryFailed{Groups: failed}, names}
}
