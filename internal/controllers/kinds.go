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
	// unfollowed says that no more will be heard of the kind.
	unfollowed bool
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

// kinds follows the metadata of every object of every kind that can be listed,
// watched and deleted, with one watch a kind. Which kinds there are follows from
// the CRDs it sees and, for servers whose APIs come in other ways, from a slow look at discovery.
type kinds struct {
	clients  *clients
	onChange func(change)

	mu       sync.Mutex
	followed map[schema.GroupKind]*follower
	dirty    map[string]bool // groups to look up again; "*" for all
	later    map[string]bool // those that are going to be, as their servers could not be reached
	wake     chan struct{}
	looking  bool // at discovery
	looked   bool // at least once

	following sync.WaitGroup
}

const (
	allGroups = "*"
	// lookAgain is how often all of discovery is read, for APIs that no CRD announces.
	lookAgain = 5 * time.Minute
	// theirsAgain is how long a look waits that fails because of another server; its APIService tells when that is back.
	theirsAgain = 30 * time.Second
	// lookPause lets a burst of new CRDs be looked up together.
	lookPause = 50 * time.Millisecond
	// Where looking takes long it is made less often: once in so many times what it took, but for the longest pause.
	lookShare, longestLookPause = 15, time.Second
	// manyGroups are looked up faster in one piece.
	manyGroups = 16
	// patience is how long a kind that cannot be listed keeps others waiting.
	patience = 30 * time.Second
)

var (
	crdKind       = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	namespaceKind = schema.GroupKind{Kind: "Namespace"}
)

func newKinds(c *clients) *kinds {
	return &kinds{
		clients: c, followed: map[schema.GroupKind]*follower{},
		dirty: map[string]bool{allGroups: true}, later: map[string]bool{}, wake: make(chan struct{}, 1),
	}
}

// run looks kinds up as they come and go, until ctx is done, and returns when they are followed no longer.
func (s *kinds) run(ctx context.Context) {
	defer s.following.Wait()
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		began := time.Now()
		s.lookUp(ctx)
		took := time.Since(began)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.mark(allGroups)
		case <-s.wake:
			pause(ctx, min(max(lookPause, lookShare*took), longestLookPause))
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// mark asks for a group's kinds to be looked up again.
func (s *kinds) mark(group string) {
	s.mu.Lock()
	s.dirty[group] = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// markLater does so in a while.
func (s *kinds) markLater(group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.later[group] {
		return
	}
	s.later[group] = true
	time.AfterFunc(theirsAgain, func() {
		s.mu.Lock()
		delete(s.later, group)
		s.mu.Unlock()
		s.mark(group)
	})
}

func (s *kinds) lookUp(ctx context.Context) {
	s.mu.Lock()
	groups := slices.Sorted(maps.Keys(s.dirty))
	if s.dirty[allGroups] || len(groups) > manyGroups {
		groups = []string{allGroups}
	}
	clear(s.dirty)
	s.looking = true
	s.mu.Unlock()
	for _, group := range groups {
		found, broken, err := s.discover(ctx, group)
		if err != nil {
			klog.FromContext(ctx).V(1).Info("discovery failed, will try again", "group", group, "reason", err.Error())
			if broken != nil || apierrors.IsServiceUnavailable(err) {
				s.markLater(group)
			} else {
				time.AfterFunc(time.Second, func() { s.mark(group) })
			}
		}
		s.follow(ctx, found, func(g string) bool {
			return err == nil && (group == allGroups || g == group) || err != nil && broken != nil && !broken[g]
		})
	}
	s.mu.Lock()
	s.looking, s.looked = false, true
	s.mu.Unlock()
}

// discover lists the kinds of a group, or of all, each at its preferred version. With an error come
// the kinds that were found and, unless nothing is known, the groups that were not.
func (s *kinds) discover(ctx context.Context, group string) (found []kind, broken map[string]bool, err error) {
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
			if followable(gv.Group, r) {
				found = append(found, kind{gv.WithResource(r.Name), r.Kind, r.Namespaced})
			}
		}
	}
	return found, broken, err
}

// discoverGroup returns, for each resource of the group, its list at the first
// served version that has it.
func (s *kinds) discoverGroup(ctx context.Context, group string) ([]*metav1.APIResourceList, error) {
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

// followable leaves out subresources, what cannot be deleted, and events, which
// own nothing and come in numbers.
func followable(group string, r metav1.APIResource) bool {
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

// follow starts and stops followers so that those of the groups that covered names are the ones found.
func (s *kinds) follow(ctx context.Context, found []kind, covered func(group string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := map[schema.GroupKind]bool{}
	for _, k := range found {
		id := k.groupKind()
		keep[id] = true
		if old := s.followed[id]; old != nil {
			if old.kind == k {
				continue
			}
			old.stop()
		}
		s.followed[id] = s.start(ctx, k)
	}
	for id, f := range s.followed {
		if !keep[id] && covered(id.Group) {
			s.end(f, 0)
		}
	}
}

// end stops a follower. The caller holds the lock, so that nothing of a new follower of
// the same kind is passed on before.
func (s *kinds) end(f *follower, asOf uint64) {
	f.stop()
	delete(s.followed, f.kind.groupKind())
	s.onChange(change{kind: f.kind, unfollowed: true, asOf: asOf})
}

func (s *kinds) start(ctx context.Context, k kind) *follower {
	ctx, stop := context.WithCancel(ctx)
	f := &follower{kinds: s, kind: k, ctx: ctx, stop: stop, started: time.Now()}
	if s.clients.feed != nil {
		if leave, ok := s.clients.feed(k.GroupVersionResource, f.replace, f.pass); ok {
			f.stop = func() {
				stop()
				leave()
			}
			return f
		}
	}
	s.following.Go(f.run)
	return f
}

// unfollow stops following what a CRD has defined that went at version.
func (s *kinds) unfollow(crd string, version uint64) {
	plural, group, _ := strings.Cut(crd, ".")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.followed {
		if f.kind.Group == group && f.kind.Resource == plural {
			s.end(f, version)
		}
	}
}

// find returns the followed kind of an API version and kind as an owner
// reference names it.
func (s *kinds) find(apiVersion, name string) (kind, bool) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return kind{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.followed[schema.GroupKind{Group: gv.Group, Kind: name}]
	if f == nil {
		return kind{}, false
	}
	return f.kind, true
}

func (s *kinds) follows(k schema.GroupKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.followed[k] != nil
}

// synced reports whether every kind has been listed once: only then is the
// absence of a dependent known. A kind that cannot be listed is waited for only so long.
func (s *kinds) synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.looked || s.looking {
		return false
	}
	for _, f := range s.followed {
		if !f.synced.Load() && time.Since(f.started) < patience {
			return false
		}
	}
	return true
}
