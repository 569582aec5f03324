package resource

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Live is the catalog as it changes. One goroutine runs Follow; all else may be called
// from any.
type Live struct {
	store    storage.Store
	builtin  *Catalog
	catalog  atomic.Pointer[Catalog]
	followed atomic.Int64 // the revision up to which the store has been followed

	watcher atomic.Pointer[func([]*storage.Event)]

	ask     chan struct{} // asks the follower to look how far the store is
	mu      sync.Mutex
	waiting []*waiter
	swapped []func(*Catalog)
}

type waiter struct {
	revision int64
	reached  chan struct{}
}

// NewLive returns a Live of a store that knows the built-in kinds alone until Follow runs. They may keep the Live, to ask it
// later.
func NewLive(store storage.Store, builtins func(*Live) []*Definition) *Live {
	l := &Live{store: store, ask: make(chan struct{}, 1)}
	l.builtin = newCatalog(builtins(l))
	l.catalog.Store(l.builtin)
	l.followed.Store(-1)
	return l
}

// IgnoreSelectableFields makes all CRDs be read as if they had none. It is called before Follow.
func (l *Live) IgnoreSelectableFields() { l.builtin.noSelectable = true }

// Load returns the catalog of now.
func (l *Live) Load() *Catalog { return l.catalog.Load() }

// Wait returns the catalog once it has followed the store up to revision, or ctx's error.
// It costs nothing where that has happened already.
func (l *Live) Wait(ctx context.Context, revision int64) (*Catalog, error) {
	if l.followed.Load() >= revision {
		return l.Load(), nil
	}
	w := &waiter{revision, make(chan struct{})}
	l.mu.Lock()
	l.waiting = append(l.waiting, w)
	l.mu.Unlock()
	defer l.forget(w)
	select {
	case l.ask <- struct{}{}:
	default:
	}
	if l.followed.Load() >= revision { // it may have come before w was there to be told
		return l.Load(), nil
	}
	select {
	case <-w.reached:
		return l.Load(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Current returns a catalog that knows all that this process has seen of the store at the
// time of the call, or ctx's error.
func (l *Live) Current(ctx context.Context) (*Catalog, error) {
	return l.Wait(ctx, l.store.Head().Revision())
}

func (l *Live) forget(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(o *waiter) bool { return o == w })
}

// wanted is the lowest revision that somebody waits for, 0 if nobody does.
func (l *Live) wanted() (revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if i == 0 || w.revision < revision {
			revision = w.revision
		}
	}
	return revision
}

// OnEvents has f called, by the goroutine that runs Follow, with all later changes of CRDs in their order, and with nil where
// changes have been missed. There is one f.
func (l *Live) OnEvents(f func(changes []*storage.Event)) { l.watcher.Store(&f) }

// OnUpdate has f called with each later catalog, by the goroutine that runs Follow.
func (l *Live) OnUpdate(f func(*Catalog)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.swapped = append(l.swapped, f)
}

func (l *Live) tell(changes []*storage.Event) {
	if f := l.watcher.Load(); f != nil {
		(*f)(changes)
	}
}

// publish makes a catalog the one of now, and tells those who wait for it.
func (l *Live) publish(c *Catalog, revision int64) {
	l.catalog.Store(c)
	l.followed.Store(max(revision, l.followed.Load()))
	l.mu.Lock()
	told := l.swapped[:len(l.swapped):len(l.swapped)]
	l.mu.Unlock()
	for _, f := range told {
		f(c)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiting {
		if w.revision <= revision && w.reached != nil {
			close(w.reached)
		}
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w *waiter) bool { return w.revision <= revision })
}

// Follow loads the CRDs and APIServices of the store and follows their changes, each in the order of revisions,
// until ctx ends, whose error it then returns, or until the store fails.
func (l *Live) Follow(ctx context.Context) error {
	for {
		snapshot := l.store.Head()
		l.publish(l.builtin.withRecords(snapshot.Walk(CRDPrefix, ""), l.apiServices(snapshot)), snapshot.Revision())
		l.tell(nil)
		err := l.follow(ctx, snapshot.Revision())
		if !storage.MissedEvents(err) {
			return err
		}
	}
}

// apiServices are those of a snapshot. They count where their kind is served, which is one that can be switched off.
func (l *Live) apiServices(snapshot *storage.Snapshot) iter.Seq[*storage.Record] {
	if !l.aggregates() {
		return func(func(*storage.Record) bool) {}
	}
	return snapshot.Walk(APIServicePrefix, "")
}

func (l *Live) aggregates() bool {
	return l.builtin.Find(apiregistrationv1.GroupName, "v1", "apiservices") != nil
}

// followed is a prefix of which every change is taken note of.
type followed struct {
	*storage.Cursor
	progress int64
}

func (l *Live) watch(ctx context.Context, prefix string, after int64) (*followed, error) {
	cursor, err := l.store.Watch(ctx, prefix, after)
	if err != nil {
		return nil, fmt.Errorf("follow the kinds: %w", err)
	}
	return &followed{cursor, after}, nil
}

func (l *Live) follow(ctx context.Context, after int64) error {
	crds, err := l.watch(ctx, CRDPrefix, after)
	if err != nil {
		return err
	}
	defer crds.Close()
	all, registered := []*followed{crds}, (<-chan struct{})(nil)
	if l.aggregates() {
		services, err := l.watch(ctx, APIServicePrefix, after)
		if err != nil {
			return err
		}
		defer services.Close()
		all, registered = append(all, services), services.Ready()
	}
	awaited := after
	for {
		changes, ofCRDs, progress, err := take(all)
		if err != nil {
			return err
		}
		if len(changes) > 0 {
			l.publish(l.Load().with(changes), progress)
			if ofCRDs > 0 {
				l.tell(changes[:ofCRDs])
			}
			continue
		}
		if progress > l.followed.Load() {
			l.publish(l.Load(), progress)
		}
		if r := l.wanted(); r != 0 && r != awaited {
			awaited = r
			for _, f := range all {
				f.Await(r)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-crds.Ready():
		case <-registered:
		case <-l.ask:
		}
	}
}

// take returns the changes that have not been seen, those of the first of all first, and the revision up to which there are no others.
func take(all []*followed) (changes []*storage.Event, ofFirst int, progress int64, err error) {
	for i, f := range all {
		if changes, f.progress, err = f.Take(changes); err != nil {
			return nil, 0, 0, fmt.Errorf("follow the kinds: %w", err)
		}
		if i == 0 {
			ofFirst, progress = len(changes), f.progress
		}
		progress = min(progress, f.progress)
	}
	return changes, ofFirst, progress, nil
}
