package controllers

import (
	"context"
	"fmt"
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
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/aggregation"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// automanaged is the label of the APIServices that the server keeps by itself: those of built-in kinds as they are at its start,
// those of CRDs always.
const (
	automanaged = "kube-aggregator.kubernetes.io/automanaged"
	onStart     = "onstart"
	always      = "true"

	apiServerManager = "kube-apiserver" // whose fields they are

	// rewriteInterval is how often the same is said of an APIService of which another server on the same store says something else.
	rewriteInterval = 30 * time.Second
)

var apiServiceKind = schema.GroupKind{Group: apiregistrationv1.GroupName, Kind: "APIService"}

// APIServices keeps an APIService for each group version that the server serves by itself, and writes down of the others whether
// they are available.
type APIServices struct {
	catalog func() *resource.Catalog
	// LastResources returns the resources that the API server of an APIService, given by UID and name, had when it was last asked
	// for them; nil if it was not asked since the APIService was created and this process started, or if it is the function nil.
	LastResources func(uid types.UID, name string) *apidiscoveryv2.APIVersionDiscovery

	queue   queue[string] // by name
	clock   clock.PassiveClock
	started time.Time

	mu           sync.Mutex
	local        *resource.PerGroup[[]schema.GroupVersion] // that the server serves by itself
	reconciled   map[string]bool                           // of built-in kinds: what this process has looked at
	conditions   map[string]availabilityReport
	onRegistered func(group string)
}

// availabilityReport is what was last said of an APIService.
type availabilityReport struct {
	uid types.UID
	aggregation.Condition
	written time.Time // when it was last written
}

// NewAPIServices returns a loop for what catalog returns.
func NewAPIServices(catalog func() *resource.Catalog) *APIServices {
	return &APIServices{
		catalog: catalog, queue: newQueue[string]("keep APIService"), clock: clock.RealClock{}, started: time.Now(), reconciled: map[string]bool{},
		conditions: map[string]availabilityReport{}, onRegistered: func(string) {},
	}
}

// Follow takes note that the catalog has changed.
func (a *APIServices) Follow() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.local = resource.ForGroups(a.catalog(), a.local, func(was []schema.GroupVersion, is *resource.Group) (now []schema.GroupVersion) {
		if is != nil && is.Name != apiServiceKind.Group { // which has none of its own
			for v := range is.Resources {
				now = append(now, schema.GroupVersion{Group: is.Name, Version: v})
			}
		}
		for _, gv := range slices.Concat(was, now) {
			if slices.Contains(was, gv) != slices.Contains(now, gv) {
				a.queue.Add(gv.Version + "." + gv.Group)
			}
		}
		return now
	})
}

// Report says that another server's group version is available or not. It never blocks; of several reports the latest counts.
func (a *APIServices) Report(s *resource.APIService, c aggregation.Condition) {
	a.mu.Lock()
	a.conditions[s.Name] = availabilityReport{uid: s.UID, Condition: c}
	a.mu.Unlock()
	a.queue.Add(s.Name)
}

// observe is told of APIServices that others have changed.
func (a *APIServices) observe(ch change) {
	if ch.kind.groupKind() != apiServiceKind {
		return
	}
	for _, m := range ch.objects() {
		a.queue.Add(m.Name)
		if _, group, _ := strings.Cut(m.Name, "."); ch.object != nil {
			a.onRegistered(group)
		}
	}
}

// Run keeps the APIServices until ctx is done. The error is one of configuration.
func (a *APIServices) Run(ctx context.Context, config *rest.Config) error {
	c, err := client.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for APIServices: %w", err)
	}
	a.queue.work(ctx, 4, func(ctx context.Context, name string) error { return a.sync(ctx, c.APIServices(), name) })
	return nil
}

// sync brings one up to date.
func (a *APIServices) sync(ctx context.Context, c client.APIServiceInterface, name string) error {
	version, group, _ := strings.Cut(name, ".")
	gv := schema.GroupVersion{Group: group, Version: version}
	a.mu.Lock()
	local, begun := slices.Contains(a.local.Find(group), gv), a.reconciled[name]
	a.mu.Unlock()
	is, err := c.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		a.forget(name)
		err = nil
		if local {
			err = a.create(ctx, c, name, gv)
		}
	case err != nil:
	case is.Spec.Service != nil || is.Labels[automanaged] == "" || begun && is.Labels[automanaged] == onStart:
		err = a.writeAvailability(ctx, c, is)
	case !local:
		err = c.Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(is.UID))})
	default:
		if want := specOf(gv); !equality.Semantic.DeepEqual(is.Spec, want) {
			is.Spec = want
			is, err = c.Update(ctx, is, metav1.UpdateOptions{FieldManager: apiServerManager})
		}
		if err == nil {
			err = a.writeAvailability(ctx, c, is)
		}
	}
	if err == nil && local {
		a.mu.Lock()
		a.reconciled[name] = true
		a.mu.Unlock()
	}
	return ignoreNotFound(err)
}

// forget lets go of what was said of one that is gone, and has not been made again.
func (a *APIServices) forget(name string) {
	again := slices.ContainsFunc(a.catalog().APIServices(), func(s *resource.APIService) bool { return s.Name == name })
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.reconciled, name)
	if !again {
		delete(a.conditions, name)
	}
}

func (a *APIServices) create(ctx context.Context, c client.APIServiceInterface, name string, gv schema.GroupVersion) error {
	label := onStart
	if resource.LocalPriority(gv).Group == resource.CustomPriority {
		label = always
	}
	_, err := c.Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{automanaged: label}},
		Spec:       specOf(gv),
	}, metav1.CreateOptions{FieldManager: apiServerManager})
	if apierrors.IsAlreadyExists(err) { // it is looked at again
		return nil
	}
	return err
}

func specOf(gv schema.GroupVersion) apiregistrationv1.APIServiceSpec {
	p := resource.LocalPriority(gv)
	return apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: int32(p.Group), VersionPriority: int32(p.Version)}
}

// writeAvailability writes whether one is available.
func (a *APIServices) writeAvailability(ctx context.Context, c client.APIServiceInterface, is *apiregistrationv1.APIService) error {
	condition := helper.NewLocalAvailableAPIServiceCondition()
	a.mu.Lock()
	reported, known := a.conditions[is.Name]
	a.mu.Unlock()
	if is.Spec.Service != nil {
		if !known || reported.uid != is.UID {
			return nil // it is going to be
		}
		condition.Reason, condition.Message = reported.Reason, truncate(reported.Message)
		if !reported.Available {
			condition.Status = apiregistrationv1.ConditionFalse
		}
	}
	was := helper.GetAPIServiceConditionByType(is, condition.Type)
	if was != nil && was.Status == condition.Status && was.Reason == condition.Reason && was.Message == condition.Message {
		return nil
	}
	if wait := rewriteInterval - a.clock.Since(reported.written); wait > 0 {
		a.queue.AddAfter(is.Name, wait)
		return nil
	}
	first := was == nil && a.startedBefore(is.CreationTimestamp.Time)
	helper.SetAPIServiceCondition(is, condition)
	recordAvailability(is, condition.Status == apiregistrationv1.ConditionTrue, first)
	_, err := c.UpdateStatus(ctx, is, metav1.UpdateOptions{FieldManager: apiServerManager})
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conditions[is.Name] == reported && known {
		reported.written = a.clock.Now()
		a.conditions[is.Name] = reported
	}
	return nil
}
