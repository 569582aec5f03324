// Package informer informs the controllers of the changes of all objects, and queues their work. It watches only
// metadata and stores none of it, because a server may have thousands of kinds.
package informer

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// Kind is a resource whose objects are watched.
type Kind struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// GroupKind returns the group and the kind of the objects.
func (k Kind) GroupKind() schema.GroupKind { return schema.GroupKind{Group: k.Group, Kind: k.Kind} }

// Change describes a change of one object, a new list of all objects of a kind, or the end of the watch of a kind.
type Change struct {
	Kind Kind
	// Object is the changed object. nil means that Listed holds all objects of the kind.
	Object  *metav1.PartialObjectMetadata
	Deleted bool
	Listed  []*metav1.PartialObjectMetadata
	// Stopped reports that the kind is no longer watched.
	Stopped bool
	// AsOf is the resource version of the list. If Stopped is set, it is the resource version at which the CRD was
	// deleted. Objects that were last written up to AsOf and are not in Listed are deleted. If AsOf is 0, the objects
	// may still be stored.
	AsOf uint64
}

// Objects returns the changed object or the listed objects.
func (c Change) Objects() []*metav1.PartialObjectMetadata {
	if c.Object != nil {
		return []*metav1.PartialObjectMetadata{c.Object}
	}
	return c.Listed
}

// Feed subscribes to the metadata of the objects that a server in this process stores. A Feed costs far less than a
// list and a watch through the API. One goroutine calls the functions listed and changed until stop is called. It
// calls listed first, with all objects at a revision, and again if it has missed changes. It calls changed for each
// later change. Feed returns false for a resource that the server does not store.
type Feed func(
	resource schema.GroupVersionResource,
	listed func(objects []*metav1.PartialObjectMetadata, revision int64),
	changed func(object *metav1.PartialObjectMetadata, deleted bool),
) (stop func(), ok bool)

// Informer watches the metadata of all objects of each kind that can be listed, watched and deleted, with one
// watch per kind. It rediscovers a group when one of its CRDs or APIServices changes. It also rediscovers all groups at
// a long interval, because there are APIs without a CRD.
type Informer struct {
	discovery discovery.DiscoveryInterface
	metadata  metadata.Interface
	feed      Feed // nil: every kind is watched through the API
	onChange  func(Change)
	groups    workqueue.TypedDelayingInterface[string] // groups to discover again, or allGroups

	mu         sync.Mutex
	active     map[schema.GroupKind]*watcher
	discovered bool // discovery has run at least once and is not running

	running sync.WaitGroup
}

const (
	allGroups = "*"
	// fullDiscoveryInterval is the interval between two discoveries of all groups. It is for APIs without a CRD.
	fullDiscoveryInterval = 5 * time.Minute
	// unavailableGroupDelay is the delay before a group of an unavailable API server is discovered again.
	// A change of its APIService triggers discovery earlier.
	unavailableGroupDelay = 30 * time.Second
	// failedDiscoveryDelay is the delay before discovery is repeated after another error.
	failedDiscoveryDelay = time.Second
	// minDiscoveryPause is the minimum pause before discovery. CRDs that are created during the pause are discovered
	// together.
	minDiscoveryPause = 50 * time.Millisecond
	// The pause is discoveryPauseFactor times the duration of the previous discovery, but at most maxDiscoveryPause.
	// It limits the CPU time of slow discovery.
	discoveryPauseFactor, maxDiscoveryPause = 15, time.Second
	// maxGroupRequests is the maximum number of groups to discover one by one. If there are more, it is faster to
	// discover all groups with one request.
	maxGroupRequests = 16
	// initialListTimeout is how long Synced waits for a kind that cannot be listed.
	initialListTimeout = 30 * time.Second
)

// The kinds whose changes trigger discovery.
var (
	CRDKind        = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	APIServiceKind = schema.GroupKind{Group: "apiregistration.k8s.io", Kind: "APIService"}
)

// New returns an Informer that calls onChange for each change. Calls for one kind do not overlap. A resource that feed
// does not have is watched through the API. A nil feed has no resources.
func New(d discovery.DiscoveryInterface, m metadata.Interface, feed Feed, onChange func(Change)) *Informer {
	return &Informer{
		discovery: d, metadata: m, feed: feed, onChange: onChange, active: map[schema.GroupKind]*watcher{},
		groups: workqueue.NewTypedDelayingQueue[string](),
	}
}

// Run discovers and watches kinds until ctx is done. It returns when all watches have stopped.
func (s *Informer) Run(ctx context.Context) {
	defer s.running.Wait()
	defer s.stopAll()
	defer context.AfterFunc(ctx, s.groups.ShutDown)()
	pause := time.Duration(0)
	for s.groups.Add(allGroups); ; {
		group, stopped := s.groups.Get()
		if stopped || !sleep(ctx, pause) {
			return
		}
		groups := []string{group}
		for s.groups.Len() > 0 {
			group, _ = s.groups.Get()
			groups = append(groups, group)
		}
		for _, group := range groups {
			s.groups.Done(group)
		}
		began := time.Now()
		s.discoverAll(ctx, groups)
		pause = min(max(minDiscoveryPause, discoveryPauseFactor*time.Since(began)), maxDiscoveryPause)
		s.groups.AddAfter(allGroups, fullDiscoveryInterval)
	}
}

// stopAll stops all watchers without a report.
func (s *Informer) stopAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.active {
		w.stop()
	}
}

// sleep reports whether the duration has passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (s *Informer) discoverAll(ctx context.Context, groups []string) {
	if slices.Contains(groups, allGroups) || len(groups) > maxGroupRequests {
		groups = []string{allGroups}
	}
	s.setDiscovered(false)
	defer s.setDiscovered(true)
	for _, group := range groups {
		found, broken, err := discover(ctx, s.discovery, group)
		if err != nil {
			klog.FromContext(ctx).V(1).Info("discovery failed; retrying", "group", group, "reason", err.Error())
			delay := failedDiscoveryDelay
			if broken != nil || apierrors.IsServiceUnavailable(err) {
				delay = unavailableGroupDelay
			}
			s.groups.AddAfter(group, delay)
		}
		s.updateWatchers(ctx, found, func(g string) bool {
			return err == nil && (group == allGroups || g == group) || err != nil && broken != nil && !broken[g]
		})
	}
}

func (s *Informer) setDiscovered(discovered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discovered = discovered
}

// updateWatchers starts a watcher for each found kind. It stops the watchers of all other kinds for whose group the
// function covered returns true.
func (s *Informer) updateWatchers(ctx context.Context, found []Kind, covered func(group string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := map[schema.GroupKind]bool{}
	for _, k := range found {
		id := k.GroupKind()
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
func (s *Informer) stopWatcher(w *watcher, asOf uint64) {
	w.stop()
	delete(s.active, w.kind.GroupKind())
	s.onChange(Change{Kind: w.kind, Stopped: true, AsOf: asOf})
}

func (s *Informer) startWatcher(ctx context.Context, k Kind) *watcher {
	ctx, stop := context.WithCancel(ctx)
	w := &watcher{informer: s, kind: k, ctx: ctx, stop: stop, started: time.Now()}
	if s.feed != nil {
		if unsubscribe, ok := s.feed(k.GroupVersionResource, w.forwardList, w.forward); ok {
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
func (s *Informer) stopForCRD(crd string, version uint64) {
	plural, group, _ := strings.Cut(crd, ".")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.active {
		if w.kind.Group == group && w.kind.Resource == plural {
			s.stopWatcher(w, version)
		}
	}
}

// Find returns the watched kind with a group and kind. ok is false if the kind is not watched.
func (s *Informer) Find(id schema.GroupKind) (found Kind, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.active[id]
	if w == nil {
		return Kind{}, false
	}
	return w.kind, true
}

// Synced reports whether every kind has been listed. Only then does the lack of a Change of an object mean that the
// object does not exist. A kind that cannot be listed is ignored after initialListTimeout.
func (s *Informer) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.discovered {
		return false
	}
	for _, w := range s.active {
		if !w.synced.Load() && time.Since(w.started) < initialListTimeout {
			return false
		}
	}
	return true
}
