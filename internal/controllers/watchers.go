package controllers

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
)

// kind is a resource whose objects the controllers watch.
type kind struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

func (k kind) groupKind() schema.GroupKind { return schema.GroupKind{Group: k.Group, Kind: k.Kind} }

// change describes a change of one object, a new list of all objects of a kind, or the end of the watch of a kind.
type change struct {
	kind kind
	// object is the changed object. nil means that listed holds all objects of the kind.
	object  *metav1.PartialObjectMetadata
	deleted bool
	listed  []*metav1.PartialObjectMetadata
	// stopped reports that the kind is no longer watched.
	stopped bool
	// asOf is the resource version of the list. If stopped is set, it is the resource version at which the CRD was
	// deleted. Objects that were last written up to asOf and are not in listed are deleted. If asOf is 0, the objects
	// may still be stored.
	asOf uint64
}

// objects returns the changed object or the listed objects.
func (ch change) objects() []*metav1.PartialObjectMetadata {
	if ch.object != nil {
		return []*metav1.PartialObjectMetadata{ch.object}
	}
	return ch.listed
}

// kindWatchers watches the metadata of all objects of each kind that can be listed, watched and deleted, with one
// watch per kind. It rediscovers a group when one of its CRDs changes. It also rediscovers all groups at a long
// interval, because there are APIs without a CRD.
type kindWatchers struct {
	clients  *clients
	onChange func(change)

	mu          sync.Mutex
	active      map[schema.GroupKind]*kindWatcher
	dirty       map[string]bool // groups to discover again; "*" means all
	delayed     map[string]bool // groups that become dirty after a delay, because their server is unavailable
	trigger     chan struct{}
	discovering bool // discovery is running
	discovered  bool // discovery has run at least once

	running sync.WaitGroup
}

const (
	allGroups = "*"
	// fullDiscoveryInterval is the interval between two discoveries of all groups. It is for APIs without a CRD.
	fullDiscoveryInterval = 5 * time.Minute
	// unavailableGroupDelay is the delay before a group of an unavailable API server is discovered again.
	// A change of its APIService triggers discovery earlier.
	unavailableGroupDelay = 30 * time.Second
	// minDiscoveryPause is the minimum pause before discovery. CRDs that are created during the pause are discovered
	// together.
	minDiscoveryPause = 50 * time.Millisecond
	// The pause is discoveryPauseFactor times the duration of the previous discovery, but at most maxDiscoveryPause.
	// It limits the CPU time of slow discovery.
	discoveryPauseFactor, maxDiscoveryPause = 15, time.Second
	// maxGroupRequests is the maximum number of groups to discover one by one. If there are more, it is faster to
	// discover all groups with one request.
	maxGroupRequests = 16
	// initialListTimeout is how long synced waits for a kind that cannot be listed.
	initialListTimeout = 30 * time.Second
)

var (
	crdKind       = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	namespaceKind = schema.GroupKind{Kind: "Namespace"}
)

func newKindWatchers(c *clients) *kindWatchers {
	return &kindWatchers{
		clients: c, active: map[schema.GroupKind]*kindWatcher{},
		dirty: map[string]bool{allGroups: true}, delayed: map[string]bool{}, trigger: make(chan struct{}, 1),
	}
}

// run discovers and watches kinds until ctx is done. It returns when all watches have stopped.
func (s *kindWatchers) run(ctx context.Context) {
	defer s.running.Wait()
	ticker := time.NewTicker(fullDiscoveryInterval)
	defer ticker.Stop()
	for {
		began := time.Now()
		s.discoverDirty(ctx)
		took := time.Since(began)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.markDirty(allGroups)
		case <-s.trigger:
			sleep(ctx, min(max(minDiscoveryPause, discoveryPauseFactor*took), maxDiscoveryPause))
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// markDirty triggers the discovery of a group.
func (s *kindWatchers) markDirty(group string) {
	s.mu.Lock()
	s.dirty[group] = true
	s.mu.Unlock()
	select {
	case s.trigger <- struct{}{}:
	default:
	}
}

// markDirtyLater triggers the discovery of a group after unavailableGroupDelay.
func (s *kindWatchers) markDirtyLater(group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.delayed[group] {
		return
	}
	s.delayed[group] = true
	time.AfterFunc(unavailableGroupDelay, func() {
		s.mu.Lock()
		delete(s.delayed, group)
		s.mu.Unlock()
		s.markDirty(group)
	})
}

func (s *kindWatchers) discoverDirty(ctx context.Context) {
	s.mu.Lock()
	groups := slices.Sorted(maps.Keys(s.dirty))
	if s.dirty[allGroups] || len(groups) > maxGroupRequests {
		groups = []string{allGroups}
	}
	clear(s.dirty)
	s.discovering = true
	s.mu.Unlock()
	for _, group := range groups {
		found, broken, err := s.discover(ctx, group)
		if err != nil {
			klog.FromContext(ctx).V(1).Info("discovery failed; retrying", "group", group, "reason", err.Error())
			if broken != nil || apierrors.IsServiceUnavailable(err) {
				s.markDirtyLater(group)
			} else {
				time.AfterFunc(time.Second, func() { s.markDirty(group) })
			}
		}
		s.updateWatchers(ctx, found, func(g string) bool {
			return err == nil && (group == allGroups || g == group) || err != nil && broken != nil && !broken[g]
		})
	}
	s.mu.Lock()
	s.discovering, s.discovered = false, true
	s.mu.Unlock()
}

// discover returns the kinds of a group, or of all groups, each at its preferred version. If only some groups failed,
// it returns an error, the kinds that it found, and the failed groups. After another error, found and broken are nil.
func (s *kindWatchers) discover(ctx context.Context, group string) (found []kind, broken map[string]bool, err error) {
	var lists []*metav1.APIResourceList
	if group == allGroups {
		lists, err = discovery.ServerPreferredResources(s.clients.discovery)
	} else {
		lists, err = s.discoverGroup(ctx, group)
	}
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err); ok {
		broken = map[string]bool{}
		for gv := range failed {
			broken[gv.Group] = true
		}
	} else if err != nil {
		return nil, nil, err
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, nil, err
		}
		for _, r := range list.APIResources {
			if isWatchable(gv.Group, r) {
				found = append(found, kind{gv.WithResource(r.Name), r.Kind, r.Namespaced})
			}
		}
	}
	return found, broken, err
}

// discoverGroup returns a list of resources for each version of the group. A resource is only in the list of the first
// version that has it.
func (s *kindWatchers) discoverGroup(ctx context.Context, group string) ([]*metav1.APIResourceList, error) {
	g := &metav1.APIGroup{}
	err := s.clients.discovery.RESTClient().Get().AbsPath("/apis", group).Do(ctx).Into(g)
	if err != nil {
		return nil, ignoreNotFound(err)
	}
	var lists []*metav1.APIResourceList
	seen := map[string]bool{}
	for _, v := range g.Versions {
		list := &metav1.APIResourceList{}
		err := s.clients.discovery.RESTClient().Get().AbsPath("/apis", group, v.Version).Do(ctx).Into(list)
		if err != nil {
			return nil, err
		}
		list.APIResources = slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool {
			known := seen[r.Name]
			seen[r.Name] = true
			return known
		})
		list.GroupVersion = v.GroupVersion
		lists = append(lists, list)
	}
	return lists, nil
}

// isWatchable reports whether the controllers watch a resource. They watch neither subresources, nor resources that
// cannot be listed, watched and deleted. They do not watch Events, because there are many of them and they own no
// objects.
func isWatchable(group string, r metav1.APIResource) bool {
	if strings.Contains(r.Name, "/") || r.Kind == "Event" && (group == "" || group == "events.k8s.io") {
		return false
	}
	for _, verb := range []string{"list", "watch", "delete"} {
		if !slices.Contains(r.Verbs, verb) {
			return false
		}
	}
	return true
}

// updateWatchers starts a watcher for each found kind. It stops the watchers of all other kinds for whose group the
// function covered returns true.
func (s *kindWatchers) updateWatchers(ctx context.Context, found []kind, covered func(group string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := map[schema.GroupKind]bool{}
	for _, k := range found {
		id := k.groupKind()
		keep[id] = true
		if old := s.active[id]; old != nil {
			if old.kind == k {
				continue
			}
			old.stop()
		}
		s.active[id] = s.startWatcher(ctx, k)
	}
	for id, w := range s.active {
		if !keep[id] && covered(id.Group) {
			s.stopWatcher(w, 0)
		}
	}
}

// stopWatcher stops a watcher and reports the end of its kind. The caller holds the lock. A new watcher of the same
// kind therefore reports no change before the end is reported.
func (s *kindWatchers) stopWatcher(w *kindWatcher, asOf uint64) {
	w.stop()
	delete(s.active, w.kind.groupKind())
	s.onChange(change{kind: w.kind, stopped: true, asOf: asOf})
}

func (s *kindWatchers) startWatcher(ctx context.Context, k kind) *kindWatcher {
	ctx, stop := context.WithCancel(ctx)
	w := &kindWatcher{watchers: s, kind: k, ctx: ctx, stop: stop, started: time.Now()}
	if s.clients.feed != nil {
		if unsubscribe, ok := s.clients.feed(k.GroupVersionResource, w.forwardList, w.forward); ok {
			w.stop = func() {
				stop()
				unsubscribe()
			}
			return w
		}
	}
	s.running.Go(w.run)
	return w
}

// stopForCRD stops the watchers of the kind of a CRD that was deleted at a resource version.
func (s *kindWatchers) stopForCRD(crd string, version uint64) {
	plural, group, _ := strings.Cut(crd, ".")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.active {
		if w.kind.Group == group && w.kind.Resource == plural {
			s.stopWatcher(w, version)
		}
	}
}

// find returns the watched kind with the API version and kind of an owner reference. The version in apiVersion is
// ignored, because the kind may be watched at another version.
func (s *kindWatchers) find(apiVersion, name string) (kind, bool) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return kind{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.active[schema.GroupKind{Group: gv.Group, Kind: name}]
	if w == nil {
		return kind{}, false
	}
	return w.kind, true
}

func (s *kindWatchers) isWatched(k schema.GroupKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[k] != nil
}

// synced reports whether every kind has been listed. Only then does a missing dependent in the graph mean that the
// dependent does not exist. A kind that cannot be listed is ignored after initialListTimeout.
func (s *kindWatchers) synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.discovered || s.discovering {
		return false
	}
	for _, w := range s.active {
		if !w.synced.Load() && time.Since(w.started) < initialListTimeout {
			return false
		}
	}
	return true
}
