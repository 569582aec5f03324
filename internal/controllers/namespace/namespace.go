// Package namespace deletes the content of namespaces that are being deleted, and then removes their finalizer.
// Upstream's deleter is not used: it finalizes a namespace that has changed since the check, reads whole Pods, and
// does not delete page by page.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
	"github.com/trellis-k8s/trellis/internal/controllers/purge"
	"github.com/trellis-k8s/trellis/internal/controllers/report"
)

// Config configures a Controller.
type Config struct {
	Discovery discovery.DiscoveryInterface
	Dynamic   dynamic.Interface
	Metadata  metadata.Interface
	Events    typedcorev1.EventsGetter
	// HasNoNamespacedObjects reports whether it is certain that no namespaced object exists at the group version of an
	// APIService whose API server is not available.
	HasNoNamespacedObjects func(schema.GroupVersion, *unstructured.Unstructured) bool
	Delay                  time.Duration // time between the deletion of a namespace and the first write
}

// Controller deletes the content of namespaces that are being deleted, and then removes their finalizer. It reports
// failures in the namespace's conditions. A failure for one kind does not prevent the deletion of other kinds.
type Controller struct {
	Config

	queue       informer.Queue[string] // names of namespaces
	terminating sync.Map               // names of the namespaces whose content is being deleted
}

const (
	namespaceFinalizer = "kubernetes"
	discoveryFailure   = "NamespaceDeletionDiscoveryFailure"
)

var (
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	apiServices = apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")
)

// New returns a Controller.
func New(c Config) *Controller {
	return &Controller{Config: c, queue: informer.NewQueue[string]("delete namespace content")}
}

// Run deletes the content of namespaces until ctx is done.
func (n *Controller) Run(ctx context.Context) {
	n.queue.Work(ctx, 4, func(ctx context.Context, name string) error {
		err := n.reconcile(ctx, name)
		if err == nil {
			n.terminating.Delete(name)
		}
		return err
	})
}

// Observe queues the namespaces whose content may be deleted after a change.
func (n *Controller) Observe(ch informer.Change) {
	if ch.Stopped || ch.Kind.GroupKind() == informer.APIServiceKind {
		n.terminating.Range(func(name, _ any) bool {
			n.queue.AddAfter(name.(string), informer.BatchDelay)
			return true
		})
		return
	}
	if ch.Deleted {
		if _, terminating := n.terminating.Load(ch.Object.Namespace); terminating {
			n.queue.AddAfter(ch.Object.Namespace, informer.BatchDelay)
		}
		return
	}
	if ch.Kind.GroupKind() != (schema.GroupKind{Kind: "Namespace"}) {
		return
	}
	for _, m := range ch.Objects() {
		if m.DeletionTimestamp != nil {
			n.queue.AddAfter(m.Name, n.Delay)
		}
	}
}

// reconcile deletes the content of a namespace and, when nothing remains, finalizes the namespace.
func (n *Controller) reconcile(ctx context.Context, name string) error {
	client := n.Dynamic.Resource(namespaces)
	ns, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return informer.IgnoreNotFound(err)
	}
	finalizers, _, _ := unstructured.NestedStringSlice(ns.Object, "spec", "finalizers")
	if ns.GetDeletionTimestamp() == nil || !slices.Contains(finalizers, namespaceFinalizer) {
		return nil // another process has removed the finalizer
	}
	n.terminating.Store(name, nil)
	left := n.deleteContent(ctx, name)
	if err := n.report(ctx, ns, left); err != nil {
		return informer.IgnoreNotFound(err)
	}
	if left.incomplete() {
		return left.err()
	}
	finalizers = slices.DeleteFunc(finalizers, func(f string) bool { return f == namespaceFinalizer })
	if err := unstructured.SetNestedStringSlice(ns.Object, finalizers, "spec", "finalizers"); err != nil {
		return err
	}
	_, err = client.Update(ctx, ns, metav1.UpdateOptions{}, "finalize")
	return informer.IgnoreNotFound(err)
}

// report writes the conditions of ns if they have changed. It creates an Event if the namespace now waits for other
// APIServices.
func (n *Controller) report(ctx context.Context, ns *unstructured.Unstructured, left *deletionResult) error {
	before := conditionMessage(ns)
	if !left.setConditions(ns) {
		return nil
	}
	is, err := n.Dynamic.Resource(namespaces).UpdateStatus(ctx, ns, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	ns.Object = is.Object
	if after := conditionMessage(ns); after != before && len(left.services) > 0 {
		return report.CreateEvent(ctx, n.Events, ns, "Warning", "WaitingForAPIService", report.Truncate(after))
	}
	return nil
}

// deletionResult holds the errors and the remaining objects of an attempt to delete the content of a namespace.
type deletionResult struct {
	discovery  error
	services   []string // names of the APIServices that block the discovery
	parsing    error
	content    []error
	objects    map[string]int // number of remaining objects by resource, such as "pods." or "crontabs.example.com"
	finalizers map[string]int // number of remaining objects by finalizer
}

func (r *deletionResult) incomplete() bool {
	return r.discovery != nil || r.parsing != nil || len(r.content) > 0 || len(r.objects) > 0
}

func (r *deletionResult) err() error {
	return errors.Join(append(r.content, r.discovery, r.parsing, errors.New("dependents remain"))...)
}

// deleteContent deletes all objects in a namespace. It deletes Pods first, because running Pods may use the other
// objects (KEP-5080).
func (n *Controller) deleteContent(ctx context.Context, name string) *deletionResult {
	left := &deletionResult{objects: map[string]int{}, finalizers: map[string]int{}}
	resources := n.deletableResources(ctx, left)
	if slices.Contains(resources, pods) {
		if n.deleteResource(ctx, name, pods, left); len(left.content) > 0 || len(left.objects) > 0 {
			return left
		}
	}
	for _, gvr := range resources {
		if gvr != pods {
			n.deleteResource(ctx, name, gvr, left)
		}
	}
	return left
}

// deletableResources returns the resources whose objects must be deleted with a namespace. The result lacks the groups
// whose discovery has failed. These failures are recorded in left, except for group versions that cannot have
// namespaced objects.
func (n *Controller) deletableResources(
	ctx context.Context, left *deletionResult,
) []schema.GroupVersionResource {
	lists, err := discovery.ServerPreferredNamespacedResources(n.Discovery)
	if err != nil {
		left.services, left.discovery = n.blockingFailures(ctx, err)
	}
	deletable := discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"delete"}}, lists)
	set, err := discovery.GroupVersionResources(deletable)
	if err != nil {
		left.parsing = err
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b schema.GroupVersionResource) int {
		return strings.Compare(a.String(), b.String())
	})
}

// deleteResource deletes the objects of one resource and counts the remaining ones.
func (n *Controller) deleteResource(
	ctx context.Context, name string, gvr schema.GroupVersionResource, left *deletionResult,
) {
	client := n.Metadata.Resource(gvr).Namespace(name)
	background := metav1.DeletePropagationBackground
	err := purge.Namespace(ctx, client, metav1.DeleteOptions{PropagationPolicy: &background})
	if err == nil {
		err = purge.EachPage(ctx, client, func(page *metav1.PartialObjectMetadataList, _ metav1.ListOptions) error {
			for i := range page.Items {
				left.objects[gvr.Resource+"."+gvr.Group]++
				for _, f := range page.Items[i].Finalizers {
					left.finalizers[f]++
				}
			}
			return nil
		})
	}
	// A resource may be no longer served, or may not support deletecollection.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) {
		left.content = append(left.content, fmt.Errorf("%s: %w", gvr.GroupResource(), err))
	}
}

// setConditions sets the conditions of ns, and reports whether one of them has changed.
func (r *deletionResult) setConditions(ns *unstructured.Unstructured) bool {
	changed := false
	set := func(kind string, bad bool, badReason, badMessage, goodReason, goodMessage string) {
		status, reason, message := "False", goodReason, goodMessage
		if bad {
			status, reason, message = "True", badReason, badMessage
		}
		changed = report.SetCondition(ns, kind, status, reason, message) || changed
	}
	set(discoveryFailure, r.discovery != nil, "DiscoveryFailed",
		r.discoveryMessage(), "ResourcesDiscovered", "All resources successfully discovered")
	set("NamespaceDeletionGroupVersionParsingFailure", r.parsing != nil, "GroupVersionParsingFailed",
		fmt.Sprint(r.parsing), "ParsedGroupVersions", "All legacy kube types successfully parsed")
	set("NamespaceDeletionContentFailure", len(r.content) > 0, "ContentDeletionFailed",
		fmt.Sprintf("Failed to delete all resource types, %d remaining: %v", len(r.content), r.contentMessage()),
		"ContentDeleted", "All content successfully deleted, may be waiting on finalization")
	objects := formatCounts(r.objects, "%s has %d resource instances")
	set("NamespaceContentRemaining", len(r.objects) > 0, "SomeResourcesRemain",
		"Some resources are remaining: "+objects, "ContentRemoved", "All content successfully removed")
	finalizers := formatCounts(r.finalizers, "%s in %d resource instances")
	set("NamespaceFinalizersRemaining", len(r.finalizers) > 0, "SomeFinalizersRemain",
		"Some content in the namespace has finalizers remaining: "+finalizers,
		"ContentHasNoFinalizers", "All content-preserving finalizers finished")
	return changed
}

func (r *deletionResult) discoveryMessage() string {
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(r.discovery); ok {
		return fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(failed), r.discovery)
	}
	return fmt.Sprint(r.discovery)
}

func (r *deletionResult) contentMessage() string {
	var parts []string
	for _, err := range r.content {
		parts = append(parts, err.Error())
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func formatCounts(counts map[string]int, format string) string {
	var parts []string
	for name, n := range counts {
		parts = append(parts, fmt.Sprintf(format, name, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// conditionMessage returns the message of the condition that reports failures of discovery.
func conditionMessage(ns *unstructured.Unstructured) string {
	c := meta.FindStatusCondition(report.Conditions(ns), discoveryFailure)
	if c == nil {
		return ""
	}
	return c.Message
}

// blockingFailures removes the group versions that cannot have namespaced objects from err, which is a failure of
// discovery. It returns nil if no group version remains. The namespace may have objects of the APIServices with the
// returned names.
func (n *Controller) blockingFailures(ctx context.Context, err error) (names []string, _ error) {
	failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err)
	if !ok {
		return nil, err
	}
	failed = maps.Clone(failed)
	for gv := range failed {
		apiService, err := n.Dynamic.Resource(apiServices).Get(ctx, gv.Version+"."+gv.Group, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, errors.Join(&discovery.ErrGroupDiscoveryFailed{Groups: failed}, err)
		case n.HasNoNamespacedObjects(gv, apiService):
			delete(failed, gv)
		default:
			names = append(names, apiService.GetName())
		}
	}
	if len(failed) == 0 {
		return nil, nil
	}
	slices.Sort(names)
	return names, fmt.Errorf("%w; waiting for APIService %s: make its API server available, "+
		"or delete the APIService if its objects in this namespace are no longer needed",
		&discovery.ErrGroupDiscoveryFailed{Groups: failed}, strings.Join(names, ", "))
}
