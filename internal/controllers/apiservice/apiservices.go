// Package apiservice reconciles APIServices: it maintains those of the group versions that the server itself serves,
// and writes whether the API servers are available. It also publishes what these API servers trust.
package apiservice

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/aggregation"
	"github.com/trellis-k8s/trellis/internal/controllers/informer"
	"github.com/trellis-k8s/trellis/internal/controllers/report"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// automanaged is the label of the APIServices that the server manages. APIServices of built-in kinds have the value
// onStart and are reconciled only at the server's start. Those of CRDs have the value always and are reconciled all
// the time.
const (
	automanaged = "kube-aggregator.kubernetes.io/automanaged"
	onStart     = "onstart"
	always      = "true"

	apiServerManager = "kube-apiserver" // field manager

	// rewriteInterval is the minimum interval between two writes of the same condition. It limits the writes of two
	// servers with the same storage that write different conditions.
	rewriteInterval = 30 * time.Second
)

// Controller reconciles the APIServices. It maintains one for each group version that the server serves locally.
// It writes the condition Available of all APIServices.
type Controller struct {
	catalog func() *catalog.Catalog
	// LastResources returns the last known resources of an APIService's API server. It returns nil if this process has
	// not queried that server since the APIService was created. If the function is nil, no resources are known.
	LastResources func(uid types.UID, name string) *apidiscoveryv2.APIVersionDiscovery

	queue   informer.Queue[string] // names of APIServices
	clock   clock.PassiveClock
	started time.Time

	mu         sync.Mutex
	local      *catalog.PerGroup[[]schema.GroupVersion] // group versions that the server serves locally
	reconciled map[string]bool                          // local APIServices that this process has reconciled
	conditions map[string]availabilityReport
}

// availabilityReport is the last reported availability of an APIService.
type availabilityReport struct {
	uid types.UID
	aggregation.Condition
	written time.Time // time of the last write of the condition
}

// New returns a controller for the group versions of the catalog.
func New(catalog func() *catalog.Catalog) *Controller {
	return &Controller{
		catalog: catalog, queue: informer.NewQueue[string]("reconcile APIService"), clock: clock.RealClock{},
		started: time.Now(), reconciled: map[string]bool{},
		conditions: map[string]availabilityReport{},
	}
}

// CatalogChanged queues the APIServices of the group versions that were added to the catalog or removed from it.
func (a *Controller) CatalogChanged() {
	a.mu.Lock()
	defer a.mu.Unlock()
	update := func(before []schema.GroupVersion, group *catalog.Group) (after []schema.GroupVersion) {
		if group != nil && group.Name != apiregistrationv1.GroupName { // the group of APIServices has no APIService
			for v := range group.Resources {
				after = append(after, schema.GroupVersion{Group: group.Name, Version: v})
			}
		}
		for _, gv := range slices.Concat(before, after) {
			if slices.Contains(before, gv) != slices.Contains(after, gv) {
				a.queue.Add(gv.Version + "." + gv.Group)
			}
		}
		return after
	}
	a.local = catalog.ForGroups(a.catalog(), a.local, update)
}

// Report records whether the API server of an APIService is available. It never blocks. A newer report replaces an
// older one.
func (a *Controller) Report(s *catalog.APIService, c aggregation.Condition) {
	a.mu.Lock()
	a.conditions[s.Name] = availabilityReport{uid: s.UID, Condition: c}
	a.mu.Unlock()
	a.queue.Add(s.Name)
}

// Observe queues changed APIServices.
func (a *Controller) Observe(ch informer.Change) {
	if ch.Kind.GroupKind() != informer.APIServiceKind {
		return
	}
	for _, m := range ch.Objects() {
		a.queue.Add(m.Name)
	}
}

// Run reconciles the APIServices until ctx is done. It does nothing if their kind is not served.
func (a *Controller) Run(ctx context.Context, c client.APIServicesGetter) {
	if a.catalog().Find(apiregistrationv1.GroupName, "v1", "apiservices") == nil {
		return
	}
	a.queue.Work(ctx, 4, func(ctx context.Context, name string) error { return a.sync(ctx, c.APIServices(), name) })
}

// sync reconciles one APIService.
func (a *Controller) sync(ctx context.Context, c client.APIServiceInterface, name string) error {
	version, group, _ := strings.Cut(name, ".")
	gv := schema.GroupVersion{Group: group, Version: version}
	a.mu.Lock()
	local, reconciled := slices.Contains(a.local.Find(group), gv), a.reconciled[name]
	a.mu.Unlock()
	apiService, err := c.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		a.forget(name)
		err = nil
		if local {
			err = a.create(ctx, c, name, gv)
		}
	case err != nil:
	case apiService.Spec.Service != nil || apiService.Labels[automanaged] == "" ||
		reconciled && apiService.Labels[automanaged] == onStart:
		err = a.writeAvailability(ctx, c, apiService)
	case !local:
		preconditions := metav1.NewUIDPreconditions(string(apiService.UID))
		err = c.Delete(ctx, name, metav1.DeleteOptions{Preconditions: preconditions})
	default:
		if want := specOf(gv); !equality.Semantic.DeepEqual(apiService.Spec, want) {
			apiService.Spec = want
			apiService, err = c.Update(ctx, apiService, metav1.UpdateOptions{FieldManager: apiServerManager})
		}
		if err == nil {
			err = a.writeAvailability(ctx, c, apiService)
		}
	}
	if err == nil && local {
		a.mu.Lock()
		a.reconciled[name] = true
		a.mu.Unlock()
	}
	return informer.IgnoreNotFound(err)
}

// forget removes the records of a deleted APIService. It keeps the last report if the APIService was created again.
func (a *Controller) forget(name string) {
	hasName := func(s *catalog.APIService) bool { return s.Name == name }
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.reconciled, name)
	// The lock prevents that a report for a new APIService arrives between the two steps, and is lost.
	if !slices.ContainsFunc(a.catalog().APIServices(), hasName) {
		delete(a.conditions, name)
	}
}

func (a *Controller) create(
	ctx context.Context, c client.APIServiceInterface, name string, gv schema.GroupVersion,
) error {
	label := onStart
	if catalog.LocalPriority(gv).Group == catalog.CustomPriority {
		label = always
	}
	_, err := c.Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{automanaged: label}},
		Spec:       specOf(gv),
	}, metav1.CreateOptions{FieldManager: apiServerManager})
	if apierrors.IsAlreadyExists(err) { // the event of the other create queues the name again
		return nil
	}
	return err
}

func specOf(gv schema.GroupVersion) apiregistrationv1.APIServiceSpec {
	p := catalog.LocalPriority(gv)
	return apiregistrationv1.APIServiceSpec{
		Group: gv.Group, Version: gv.Version,
		GroupPriorityMinimum: int32(p.Group), VersionPriority: int32(p.Version),
	}
}

// writeAvailability writes the condition Available of an APIService if it has changed. It writes the reason and message
// of a report once, because another server may report the same status for another reason.
func (a *Controller) writeAvailability(
	ctx context.Context, c client.APIServiceInterface, apiService *apiregistrationv1.APIService,
) error {
	condition := helper.NewLocalAvailableAPIServiceCondition()
	a.mu.Lock()
	reported, known := a.conditions[apiService.Name]
	a.mu.Unlock()
	if apiService.Spec.Service != nil {
		if !known || reported.uid != apiService.UID {
			return nil // Report queues the APIService later
		}
		condition.Reason, condition.Message = reported.Reason, report.Truncate(reported.Message)
		if !reported.Available {
			condition.Status = apiregistrationv1.ConditionFalse
		}
	}
	was := helper.GetAPIServiceConditionByType(apiService, condition.Type)
	if was != nil && was.Status == condition.Status && (!reported.written.IsZero() ||
		was.Reason == condition.Reason && was.Message == condition.Message) {
		return nil
	}
	if wait := rewriteInterval - a.clock.Since(reported.written); wait > 0 {
		a.queue.AddAfter(apiService.Name, wait)
		return nil
	}
	created := apiService.CreationTimestamp.Time // in whole seconds
	first := was == nil && !created.Before(a.started.Truncate(time.Second))
	helper.SetAPIServiceCondition(apiService, condition)
	recordAvailability(apiService, condition.Status == apiregistrationv1.ConditionTrue, first)
	_, err := c.UpdateStatus(ctx, apiService, metav1.UpdateOptions{FieldManager: apiServerManager})
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conditions[apiService.Name] == reported && known {
		reported.written = a.clock.Now()
		a.conditions[apiService.Name] = reported
	}
	return nil
}
