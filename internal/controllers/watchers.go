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

// kind is one resource that the loops follow.
type kind struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

func (k kind) groupKind() schema.GroupKind { return schema.GroupKind{Group: k.Group, Kind: k.Kind} }

// change is what happened to one object, or to all of a kind.
type change struct {
	kind kind
	// object is nil when the kind was listed anew: then listed holds all of it.
	object  *metav1.PartialObjectMetadata
	deleted bool
	listed  []*metav1.PartialObjectMetadata
	// stopped says that no more will be heard of the kind.
	stopped bool
	// asOf is the resource version of the list or, for a kind that has ended, that at which its CRD
	// went: objects written until then and not listed are gone. 0 says that they may still be stored.
	asOf uint64
}

// objects are the object or objects that the change speaks of.
func (ch change) objects() []*metav1.PartialObjectMetadata {
	if ch.object != nil {
		return []*metav1.PartialObjectMetadata{ch.object}
	}
	return ch.listed
}

// kindWatchers follows the metadata of every object of every kind that can be listed,
// watched and deleted, with one watch a kind. Which kinds there are follows from
// the CRDs it sees and, for servers whose APIs come in other ways, from a slow look at discovery.
type kindWatchers struct {
	clients  *clients
	onChange func(change)

	mu          sync.Mutex
	active      map[schema.GroupKind]*kindWatcher
	dirty       map[string]bool // groups to look up again; "*" for all
	delayed     map[string]bool // those that are going to be, as their servers could not be reached
	trigger     chan struct{}
	discovering bool // at discovery
	discovered  bool // at least once

	running sync.WaitGroup
}

const (
	allGroups = "*"
	// fullDiscoveryInterval is how often all of discovery is read, for APIs that no CRD announces.
	fullDiscoveryInterval = 5 * time.Minute
	// unavailableGroupDelay is how long a look waits that fails because of another server; its APIService tells when that is back.
	unavailableGroupDelay = 30 * time.Second
	// minDiscoveryPause lets a burst of new CRDs be looked up together.
	minDiscoveryPause = 50 * time.Millisecond
	// Where looking takes long it is made less often: once in so many times what it took, but for the longest pause.
	discoveryPauseFactor, maxDiscoveryPause = 15, time.Second
	// maxGroupRequests are looked up faster in one piece.
	maxGroupRequests = 16
	// initialListTimeout is how long a kind that cannot be listed keeps others waiting.
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

// run looks kinds up as they come and go, until ctx is done, and returns when they are followed no longer.
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

// markDirty asks for a group's kinds to be looked up again.
func (s *kindWatchers) markDirty(group string) {
	s.mu.Lock()
	s.dirty[group] = true
	s.mu.Unlock()
	select {
	case s.trigger <- struct{}{}:
	default:
	}
}

// markDirtyLater does so in a while.
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
			klog.FromContext(ctx).V(1).Info("discovery failed, will try again", "group", group, "reason", err.Error())
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

// discover lists the kinds of a group, or of all, each at its preferred version. With an error come
// the kinds that were found and, unless nothing is known, the groups that were not.
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

// discoverGroup returns, for each resource of the group, its list at the first
// served version that has it.
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

// isWatchable leaves out subresources, what cannot be deleted, and events, which
// own nothing and come in numbers.
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

// updateWatchers starts and stops followers so that those of the groups that covered names are the ones found.
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
	for id, f := range s.active {
		if !keep[id] && covered(id.Group) {
			s.stopWatcher(f, 0)
		}
	}
}

// stopWatcher stops a follower. The caller holds the lock, so that nothing of a new follower of
// the same kind is passed on before.
func (s *kindWatchers) stopWatcher(f *kindWatcher, asOf uint64) {
	f.stop()
	delete(s.active, f.kind.groupKind())
	s.onChange(change{kind: f.kind, stopped: true, asOf: asOf})
}

func (s *kindWatchers) startWatcher(ctx context.Context, k kind) *kindWatcher {
	ctx, stop := context.WithCancel(ctx)
	f := &kindWatcher{watchers: s, kind: k, ctx: ctx, stop: stop, started: time.Now()}
	if s.clients.feed != nil {
		if leave, ok := s.clients.feed(k.GroupVersionResource, f.forwardList, f.forward); ok {
			f.stop = func() {
				stop()
				leave()
			}
			return f
		}
	}
	s.running.Go(f.run)
	return f
}

// stopForCRD stops following what a CRD has defined that went at version.
func (s *kindWatchers) stopForCRD(crd string, version uint64) {
	plural, group, _ := strings.Cut(crd, ".")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.active {
		if f.kind.Group == group && f.kind.Resource == plural {
			s.stopWatcher(f, version)
		}
	}
}

// find returns the followed kind of an API version and kind as an owner
// reference names it.
func (s *kindWatchers) find(apiVersion, name string) (kind, bool) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return kind{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.active[schema.GroupKind{Group: gv.Group, Kind: name}]
	if f == nil {
		return kind{}, false
	}
	return f.kind, true
}

func (s *kindWatchers) isWatched(k schema.GroupKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[k] != nil
}

// synced reports whether every kind has been listed once: only then is the
// absence of a dependent known. A kind that cannot be listed is waited for only so long.
func (s *kindWatchers) synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.discovered || s.discovering {
		return false
	}
	for _, f := range s.active {
		if !f.synced.Load() && time.Since(f.started) < initialListTimeout {
			return false
		}
	}
	return true
}
