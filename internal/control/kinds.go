package control

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
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
	wake     chan struct{}
	started  atomic.Bool
}

type follower struct {
	kind   kind
	stop   context.CancelFunc
	synced atomic.Bool
}

const (
	allGroups = "*"
	// lookAgain is how often all of discovery is read, for APIs that no CRD announces.
	lookAgain = 5 * time.Minute
	// lookPause lets a burst of new CRDs be looked up together.
	lookPause = 200 * time.Millisecond
)

var (
	crdKind       = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	namespaceKind = schema.GroupKind{Kind: "Namespace"}
)

func newKinds(c *clients) *kinds {
	return &kinds{
		clients: c, followed: map[schema.GroupKind]*follower{},
		dirty: map[string]bool{allGroups: true}, wake: make(chan struct{}, 1),
	}
}

// run looks kinds up as they come and go, until ctx is done.
func (s *kinds) run(ctx context.Context) {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		s.lookUp(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.mark(allGroups)
		case <-s.wake:
			pause(ctx, lookPause)
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

func (s *kinds) lookUp(ctx context.Context) {
	s.mu.Lock()
	groups := slices.Sorted(maps.Keys(s.dirty))
	clear(s.dirty)
	s.mu.Unlock()
	for _, group := range groups {
		found, err := s.discover(group)
		if err != nil {
			klog.FromContext(ctx).V(1).Info("discovery failed, will try again", "group", group, "reason", err.Error())
			time.AfterFunc(time.Second, func() { s.mark(group) })
			continue
		}
		s.follow(ctx, group, found)
	}
	s.started.Store(true)
}

// discover lists the kinds of a group, or of all, each at its preferred version.
func (s *kinds) discover(group string) ([]kind, error) {
	var lists []*metav1.APIResourceList
	var err error
	if group == allGroups {
		lists, err = discovery.ServerPreferredResources(s.clients.discovery)
	} else {
		lists, err = s.discoverGroup(group)
	}
	if err != nil {
		return nil, err
	}
	var found []kind
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if followable(gv.Group, r) {
				found = append(found, kind{gv.WithResource(r.Name), r.Kind, r.Namespaced})
			}
		}
	}
	return found, nil
}

// discoverGroup returns, for each resource of the group, its list at the first
// served version that has it.
func (s *kinds) discoverGroup(group string) ([]*metav1.APIResourceList, error) {
	groups, err := s.clients.discovery.ServerGroups()
	if err != nil {
		return nil, err
	}
	var lists []*metav1.APIResourceList
	seen := map[string]bool{}
	for _, g := range groups.Groups {
		if g.Name != group {
			continue
		}
		for _, v := range g.Versions {
			list, err := s.clients.discovery.ServerResourcesForGroupVersion(v.GroupVersion)
			if err != nil {
				return nil, err
			}
			list.APIResources = slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool {
				known := seen[r.Name]
				seen[r.Name] = true
				return known
			})
			lists = append(lists, list)
		}
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

// follow starts and stops followers so that those of group are the ones found.
func (s *kinds) follow(ctx context.Context, group string, found []kind) {
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
		if !keep[id] && (group == allGroups || id.Group == group) {
			f.stop()
			delete(s.followed, id)
			go s.onChange(change{kind: f.kind, listed: []*metav1.PartialObjectMetadata{}})
		}
	}
}

func (s *kinds) start(ctx context.Context, k kind) *follower {
	ctx, stop := context.WithCancel(ctx)
	f := &follower{kind: k, stop: stop}
	client := s.clients.metadata.Resource(k.GroupVersionResource)
	failed := func(err error) {
		if err == nil || ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).V(1).Info("will follow again", "kind", k, "reason", err.Error())
		if apierrors.IsNotFound(err) {
			s.mark(k.Group)
		}
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, o)
			failed(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := client.Watch(ctx, o)
			failed(err)
			return w, err
		},
	}
	reflector := cache.NewReflectorWithOptions(source, &metav1.PartialObjectMetadata{}, &sink{s, f},
		cache.ReflectorOptions{Name: k.GroupVersionResource.String()})
	// A kind that comes and goes is no error here; failed has said what there is to say.
	go reflector.RunWithContext(klog.NewContext(ctx, logr.Discard()))
	return f
}

// unfollow stops following what a CRD that is gone has defined.
func (s *kinds) unfollow(crd string) {
	plural, group, _ := strings.Cut(crd, ".")
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, f := range s.followed {
		if f.kind.Group == group && f.kind.Resource == plural {
			f.stop()
			delete(s.followed, id)
			go s.onChange(change{kind: f.kind, listed: []*metav1.PartialObjectMetadata{}})
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

// synced reports whether every kind has been listed once: only then is the
// absence of a dependent known.
func (s *kinds) synced() bool {
	if !s.started.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.followed {
		if !f.synced.Load() {
			return false
		}
	}
	return true
}

// sink receives what a reflector sees. It keeps nothing.
type sink struct {
	kinds    *kinds
	follower *follower
}

func (s *sink) Add(o any) error    { return s.pass(o, false) }
func (s *sink) Update(o any) error { return s.pass(o, false) }
func (s *sink) Delete(o any) error { return s.pass(o, true) }
func (s *sink) Resync() error      { return nil }

// Transformer keeps the reflector from holding what no loop reads.
func (s *sink) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if m, ok := o.(*metav1.PartialObjectMetadata); ok {
			m.ManagedFields, m.Labels, m.Annotations = nil, nil, nil
		}
		return o, nil
	}
}

// Replace passes on a whole list.
func (s *sink) Replace(objects []any, _ string) error {
	listed := make([]*metav1.PartialObjectMetadata, 0, len(objects))
	for _, o := range objects {
		if m, ok := o.(*metav1.PartialObjectMetadata); ok {
			listed = append(listed, m)
		}
	}
	s.kinds.onChange(change{kind: s.follower.kind, listed: listed})
	s.follower.synced.Store(true)
	if s.follower.kind.groupKind() == crdKind {
		s.kinds.mark(allGroups)
	}
	return nil
}

func (s *sink) pass(o any, deleted bool) error {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil
	}
	s.kinds.onChange(change{kind: s.follower.kind, object: m, deleted: deleted})
	if s.follower.kind.groupKind() == crdKind {
		if deleted {
			s.kinds.unfollow(m.Name)
		}
		_, group, _ := strings.Cut(m.Name, ".")
		s.kinds.mark(group)
	}
	return nil
}
