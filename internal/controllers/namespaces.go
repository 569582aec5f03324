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

// namespaces empties namespaces that are being deleted and then lets them go. What
// stands in the way is said in the namespace's conditions, and never keeps the other kinds from
// being deleted.
type namespaces struct {
	clients  *clients
	services *APIServices
	delay    time.Duration // from the start of a deletion to the first write
	queue    queue[string]
	ending   waiting
}

const (
	namespaceFinalizer = "kubernetes"
	discoveryFailure   = "NamespaceDeletionDiscoveryFailure"
	// gather lets objects that go one after another lead to one new look.
	gather = 50 * time.Millisecond
)

func newNamespaces(c *clients, services *APIServices) *namespaces {
	return &namespaces{clients: c, services: services, queue: newQueue[string]("empty namespace")}
}

func (n *namespaces) run(ctx context.Context) { n.queue.work(ctx, 4, n.end) }

func (n *namespaces) observe(ch change) {
	if ch.unfollowed || ch.kind.groupKind() == apiServiceKind {
		n.ending.each(func(name string) { n.queue.AddAfter(name, gather) })
		return
	}
	if ch.deleted && ch.object.Namespace != "" && n.ending.has(ch.object.Namespace) {
		n.queue.AddAfter(ch.object.Namespace, gather)
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

func (n *namespaces) client() dynamic.ResourceInterface {
	return n.clients.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
}

// end empties a namespace and, when nothing is left, finalizes it.
func (n *namespaces) end(ctx context.Context, name string) error {
	ns, err := n.client().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		n.ending.remove(name)
		return nil
	}
	if err != nil {
		return err
	}
	finalizers, _, _ := unstructured.NestedStringSlice(ns.Object, "spec", "finalizers")
	if ns.GetDeletionTimestamp() == nil || !slices.Contains(finalizers, namespaceFinalizer) {
		n.ending.remove(name) // another has ended it
		return nil
	}
	n.ending.add(name)
	left := n.empty(ctx, name)
	if err := n.report(ctx, ns, left); err != nil {
		return ignoreNotFound(err)
	}
	if left.any() {
		return left.err()
	}
	finalizers = slices.DeleteFunc(finalizers, func(f string) bool { return f == namespaceFinalizer })
	if err := unstructured.SetNestedStringSlice(ns.Object, finalizers, "spec", "finalizers"); err != nil {
		return err
	}
	if _, err = n.client().Update(ctx, ns, metav1.UpdateOptions{}, "finalize"); ignoreNotFound(err) != nil {
		return err
	}
	n.ending.remove(name)
	return nil
}

// report writes the conditions of ns if they have changed, and creates an Event when it begins to wait for other APIServices than before.
func (n *namespaces) report(ctx context.Context, ns *unstructured.Unstructured, left *remains) error {
	before := message(ns, discoveryFailure)
	if !left.setConditions(ns) {
		return nil
	}
	is, err := n.client().UpdateStatus(ctx, ns, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	ns.Object = is.Object
	var blocked *blockedError
	if after := message(ns, discoveryFailure); after != before && errors.As(left.discovery, &blocked) && len(blocked.services) > 0 {
		return event(ctx, n.clients.dynamic, ns, "Warning", "WaitingForAPIService", clip(after))
	}
	return nil
}

// remains is what an attempt to empty a namespace has left.
type remains struct {
	discovery  error
	parsing    error
	content    []error
	objects    map[string]int // "crontabs.stable.example.com", "pods." -> how many
	finalizers map[string]int
}

func (r *remains) any() bool {
	return r.discovery != nil || r.parsing != nil || len(r.content) > 0 || len(r.objects) > 0
}

func (r *remains) err() error {
	return errors.Join(append(r.content, r.discovery, r.parsing, errRemaining)...)
}

// empty deletes everything in a namespace: pods first, so that nothing they use is
// taken from under them (KEP-5080), then the rest.
func (n *namespaces) empty(ctx context.Context, name string) *remains {
	left := &remains{objects: map[string]int{}, finalizers: map[string]int{}}
	resources := n.resources(ctx, left)
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	if slices.Contains(resources, pods) {
		if n.emptyOf(ctx, name, pods, left); len(left.content) > 0 || len(left.objects) > 0 {
			return left
		}
	}
	for _, gvr := range resources {
		if gvr != pods {
			n.emptyOf(ctx, name, gvr, left)
		}
	}
	return left
}

// resources lists what can be in a namespace. A group whose discovery fails is left out, and recorded unless it holds nothing.
func (n *namespaces) resources(ctx context.Context, left *remains) []schema.GroupVersionResource {
	lists, err := discovery.ServerPreferredNamespacedResources(n.clients.discovery)
	if err != nil {
		left.discovery = n.blocking(ctx, err)
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

// emptyOf deletes the objects of one kind and counts what is left of them.
func (n *namespaces) emptyOf(ctx context.Context, name string, gvr schema.GroupVersionResource, left *remains) {
	client := n.clients.metadata.Resource(gvr).Namespace(name)
	err := func() error {
		background := metav1.DeletePropagationBackground
		if err := purge(ctx, client, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			return err
		}
		return count(ctx, client, gvr, left)
	}()
	if err != nil && !gone(err) {
		left.content = append(left.content, fmt.Errorf("%s: %w", gvr.GroupResource(), err))
	}
}

// gone says that a resource has left the server, or cannot be deleted in bulk.
func gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) }

func count(ctx context.Context, client metadata.ResourceInterface, gvr schema.GroupVersionResource, left *remains) error {
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

// setConditions says in ns what is left and reports whether that changed anything.
func (r *remains) setConditions(ns *unstructured.Unstructured) bool {
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
	set("NamespaceContentRemaining", len(r.objects) > 0, "SomeResourcesRemain",
		"Some resources are remaining: "+tally(r.objects, "%s has %d resource instances"), "ContentRemoved", "All content successfully removed")
	set("NamespaceFinalizersRemaining", len(r.finalizers) > 0, "SomeFinalizersRemain",
		"Some content in the namespace has finalizers remaining: "+tally(r.finalizers, "%s in %d resource instances"),
		"ContentHasNoFinalizers", "All content-preserving finalizers finished")
	return changed
}

func (r *remains) discoveryMessage() string {
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(r.discovery); ok {
		return fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(failed), r.discovery)
	}
	return fmt.Sprint(r.discovery)
}

func (r *remains) contentMessage() string {
	var parts []string
	for _, err := range r.content {
		parts = append(parts, err.Error())
	}
	sort.Strings(parts)
	return strings.Join(parts, ", ")
}

func tally(counts map[string]int, format string) string {
	var parts []string
	for name, n := range counts {
		parts = append(parts, fmt.Sprintf(format, name, n))
	}
	sort.Strings(parts)
	return strings.Join(parts, ", ")
}
