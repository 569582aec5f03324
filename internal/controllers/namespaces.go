package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
)

// namespaceController deletes the content of namespaces that are being deleted, and then
// removes their finalizer. It reports failures in the namespace's conditions. A failure for
// one kind does not prevent the deletion of other kinds.
type namespaceController struct {
	clients     *clients
	services    *APIServices
	delay       time.Duration // time between the deletion of a namespace and the first write
	queue       queue[string] // names of namespaces
	terminating nameSet
}

const (
	namespaceFinalizer = "kubernetes"
	discoveryFailure   = "NamespaceDeletionDiscoveryFailure"
	// batchDelay is the delay before a reconciliation. A series of changes within the delay causes only one
	// reconciliation.
	batchDelay = 50 * time.Millisecond
)

func newNamespaceController(c *clients, services *APIServices) *namespaceController {
	return &namespaceController{clients: c, services: services, queue: newQueue[string]("delete namespace content")}
}

func (n *namespaceController) run(ctx context.Context) { n.queue.work(ctx, 4, n.reconcile) }

func (n *namespaceController) observe(ch change) {
	if ch.stopped || ch.kind.groupKind() == apiServiceKind {
		n.terminating.each(func(name string) { n.queue.AddAfter(name, batchDelay) })
		return
	}
	if ch.deleted && ch.object.Namespace != "" && n.terminating.has(ch.object.Namespace) {
		n.queue.AddAfter(ch.object.Namespace, batchDelay)
	}
	if ch.kind.groupKind() != namespaceKind || ch.deleted {
		return
	}
	for _, m := range ch.objects() {
		if m.DeletionTimestamp != nil {
			n.queue.AddAfter(m.Name, n.delay)
		}
	}
}

func (n *namespaceController) client() dynamic.ResourceInterface {
	return n.clients.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
}

// reconcile deletes the content of a namespace and, when nothing remains, finalizes the namespace.
func (n *namespaceController) reconcile(ctx context.Context, name string) error {
	ns, err := n.client().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		n.terminating.remove(name)
		return nil
	}
	if err != nil {
		return err
	}
	finalizers, _, _ := unstructured.NestedStringSlice(ns.Object, "spec", "finalizers")
	if ns.GetDeletionTimestamp() == nil || !slices.Contains(finalizers, namespaceFinalizer) {
		n.terminating.remove(name) // another process has removed the finalizer
		return nil
	}
	n.terminating.add(name)
	left := n.deleteContent(ctx, name)
	if err := n.report(ctx, ns, left); err != nil {
		return ignoreNotFound(err)
	}
	if left.incomplete() {
		return left.err()
	}
	finalizers = slices.DeleteFunc(finalizers, func(f string) bool { return f == namespaceFinalizer })
	if err := unstructured.SetNestedStringSlice(ns.Object, finalizers, "spec", "finalizers"); err != nil {
		return err
	}
	if _, err = n.client().Update(ctx, ns, metav1.UpdateOptions{}, "finalize"); ignoreNotFound(err) != nil {
		return err
	}
	n.terminating.remove(name)
	return nil
}

// report writes the conditions of ns if they have changed. It creates an Event if the namespace now waits for other
// APIServices.
func (n *namespaceController) report(ctx context.Context, ns *unstructured.Unstructured, left *deletionResult) error {
	before := conditionMessage(ns, discoveryFailure)
	if !left.setConditions(ns) {
		return nil
	}
	is, err := n.client().UpdateStatus(ctx, ns, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	ns.Object = is.Object
	var blocked *blockedError
	after := conditionMessage(ns, discoveryFailure)
	if after != before && errors.As(left.discovery, &blocked) && len(blocked.services) > 0 {
		return createEvent(ctx, n.clients.dynamic, ns, "Warning", "WaitingForAPIService", truncate(after))
	}
	return nil
}

// deletionResult holds the errors and the remaining objects of an attempt to delete the content of a namespace.
type deletionResult struct {
	discovery  error
	parsing    error
	content    []error
	objects    map[string]int // number of remaining objects by resource, such as "pods." or "crontabs.example.com"
	finalizers map[string]int // number of remaining objects by finalizer
}

func (r *deletionResult) incomplete() bool {
	return r.discovery != nil || r.parsing != nil || len(r.content) > 0 || len(r.objects) > 0
}

func (r *deletionResult) err() error {
	return errors.Join(append(r.content, r.discovery, r.parsing, errRemaining)...)
}

// deleteContent deletes all objects in a namespace. It deletes Pods first, because running Pods may use the other
// objects (KEP-5080).
func (n *namespaceController) deleteContent(ctx context.Context, name string) *deletionResult {
	left := &deletionResult{objects: map[string]int{}, finalizers: map[string]int{}}
	resources := n.deletableResources(ctx, left)
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
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
func (n *namespaceController) deletableResources(
	ctx context.Context, left *deletionResult,
) []schema.GroupVersionResource {
	lists, err := discovery.ServerPreferredNamespacedResources(n.clients.discovery)
	if err != nil {
		left.discovery = n.blockingFailures(ctx, err)
	}
	deletable := discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"delete"}}, lists)
	set, err := discovery.GroupVersionResources(deletable)
	if err != nil {
		left.parsing = err
	}
	var all []schema.GroupVersionResource
	for gvr := range set {
		all = append(all, gvr)
	}
	slices.SortFunc(all, func(a, b schema.GroupVersionResource) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// deleteResource deletes the objects of one resource and counts the remaining ones.
func (n *namespaceController) deleteResource(
	ctx context.Context, name string, gvr schema.GroupVersionResource, left *deletionResult,
) {
	client := n.clients.metadata.Resource(gvr).Namespace(name)
	err := func() error {
		background := metav1.DeletePropagationBackground
		if err := purge(ctx, client, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			return err
		}
		return countRemaining(ctx, client, gvr, left)
	}()
	if err != nil && !isUnsupported(err) {
		left.content = append(left.content, fmt.Errorf("%s: %w", gvr.GroupResource(), err))
	}
}

// isUnsupported reports whether err means that a resource is no longer served or does not support deletecollection.
func isUnsupported(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

func countRemaining(
	ctx context.Context, client metadata.ResourceInterface, gvr schema.GroupVersionResource, left *deletionResult,
) error {
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := client.List(ctx, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			left.objects[gvr.Resource+"."+gvr.Group]++
			for _, f := range page.Items[i].Finalizers {
				left.finalizers[f]++
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
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
		changed = setCondition(ns, kind, status, reason, message) || changed
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
	sort.Strings(parts)
	return strings.Join(parts, ", ")
}

func formatCounts(counts map[string]int, format string) string {
	var parts []string
	for name, n := range counts {
		parts = append(parts, fmt.Sprintf(format, name, n))
	}
	sort.Strings(parts)
	return strings.Join(parts, ", ")
}
