package catalog

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Live holds the current catalog and updates it as the store changes. One goroutine runs Follow. All other methods
// are safe for concurrent use.
type Live struct {
	store    storage.Store
	builtin  *Catalog
	catalog  atomic.Pointer[Catalog]
	followed atomic.Int64 // revision up to which changes of the store are in the catalog

	onEvents atomic.Pointer[func([]*storage.Event)]

	trigger  chan struct{} // makes the follower query the store's progress
	mu       sync.Mutex
	waiting  []*waiter
	onUpdate []func(*Catalog)
}

type waiter struct {
	revision int64
	reached  chan struct{}
}

// NewLive returns a Live for a store. It has only the built-in kinds until Follow runs. The built-in kinds may
// retain the Live and call it later.
func NewLive(store storage.Store, builtins func(*Live) []*resource.Definition) *Live {
	l := &Live{store: store, trigger: make(chan struct{}, 1)}
	l.builtin = newCatalog(builtins(l))
	l.catalog.Store(l.builtin)
	l.followed.Store(-1)
	return l
}

// IgnoreSelectableFields makes the catalog ignore the selectable fields of all CRDs. It must be called before
// Follow.
func (l *Live) IgnoreSelectableFields() { l.builtin.noSelectable = true }

// Load returns the current catalog.
func (l *Live) Load() *Catalog { return l.catalog.Load() }

// Wait blocks until the catalog includes all changes up to revision, and returns the catalog. It returns the error
// of ctx if ctx ends first. If the catalog already includes the changes, Wait is cheap.
func (l *Live) Wait(ctx context.Context, revision int64) (*Catalog, error) {
	if l.followed.Load() >= revision {
		return l.Load(), nil
	}
	w := &waiter{revision, make(chan struct{})}
	l.mu.Lock()
	l.waiting = append(l.waiting, w)
	l.mu.Unlock()
	defer l.removeWaiter(w)
	select {
	case l.trigger <- struct{}{}:
	default:
	}
	if l.followed.Load() >= revision { // the revision may have been reached before w was registered
		return l.Load(), nil
	}
	select {
	case <-w.reached:
		return l.Load(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Current returns a catalog that includes all changes of the store that this process has received before the call.
// It returns the error of ctx if ctx ends first.
func (l *Live) Current(ctx context.Context) (*Catalog, error) {
	return l.Wait(ctx, l.store.Head().Revision())
}

func (l *Live) removeWaiter(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(o *waiter) bool { return o == w })
}

// lowestAwaited returns the lowest revision for which a caller waits, or 0 if no caller waits.
func (l *Live) lowestAwaited() (revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if i == 0 || w.revision < revision {
			revision = w.revision
		}
	}
	return revision
}

// OnEvents registers f for all later changes of CRDs, in their order. The goroutine that runs Follow calls f. It
// passes nil if changes have been missed. A second call of OnEvents replaces f.
func (l *Live) OnEvents(f func(changes []*storage.Event)) { l.onEvents.Store(&f) }

// OnUpdate registers f for each later catalog. The goroutine that runs Follow calls f.
func (l *Live) OnUpdate(f func(*Catalog)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onUpdate = append(l.onUpdate, f)
}

func (l *Live) notify(changes []*storage.Event) {
	if f := l.onEvents.Load(); f != nil {
		(*f)(changes)
	}
}

// publish sets the current catalog and notifies all waiting callers.
func (l *Live) publish(c *Catalog, revision int64) {
	l.catalog.Store(c)
	l.followed.Store(max(revision, l.followed.Load()))
	l.mu.Lock()
	callbacks := l.onUpdate[:len(l.onUpdate):len(l.onUpdate)]
	l.mu.Unlock()
	for _, f := range callbacks {
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

// Follow loads the CRDs and APIServices of the store and follows their changes in the order of revisions. It blocks
// until ctx ends or the store fails, and returns the error.
func (l *Live) Follow(ctx context.Context) error {
	for {
		snapshot := l.store.Head()
		crds := snapshot.Walk(definition.CRDPrefix, "")
		l.publish(l.builtin.withRecords(crds, l.apiServices(snapshot)), snapshot.Revision())
		l.notify(nil)
		err := l.follow(ctx, snapshot.Revision())
		if !storage.MissedEvents(err) {
			return err
		}
	}
}

// apiServices returns the APIServices of a snapshot. If the kind APIService is not served, which is configurable,
// it returns none.
func (l *Live) apiServices(snapshot *storage.Snapshot) iter.Seq[*storage.Record] {
	if !l.servesAPIServices() {
		return func(func(*storage.Record) bool) {}
	}
	return snapshot.Walk(APIServicePrefix, "")
}

func (l *Live) servesAPIServices() bool {
	return l.builtin.Find(apiregistrationv1.GroupName, "v1", "apiservices") != nil
}

// watchedPrefix is a watch of all keys with a prefix.
type watchedPrefix struct {
	*storage.Cursor
	progress int64 // revision up to which all events have been taken
}

func (l *Live) watch(ctx context.Context, prefix string, after int64) (*watchedPrefix, error) {
	cursor, err := l.store.Watch(ctx, prefix, after)
	if err != nil {
		return nil, fmt.Errorf("watch CRDs and APIServices: %w", err)
	}
	return &watchedPrefix{cursor, after}, nil
}

func (l *Live) follow(ctx context.Context, after int64) error {
	crds, err := l.watch(ctx, definition.CRDPrefix, after)
	if err != nil {
		return err
	}
	defer crds.Close()
	all, registered := []*watchedPrefix{crds}, (<-chan struct{})(nil)
	if l.servesAPIServices() {
		services, err := l.watch(ctx, APIServicePrefix, after)
		if err != nil {
			return err
		}
		defer services.Close()
		all, registered = append(all, services), services.Ready()
	}
	awaited := after
	for {
		changes, ofCRDs, progress, err := takeChanges(all)
		if err != nil {
			return err
		}
		if len(changes) > 0 {
			l.publish(l.Load().withChanges(changes), progress)
			if ofCRDs > 0 {
				l.notify(changes[:ofCRDs])
			}
			continue
		}
		if progress > l.followed.Load() {
			l.publish(l.Load(), progress)
		}
		if r := l.lowestAwaited(); r != 0 && r != awaited {
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
		case <-l.trigger:
		}
	}
}

// takeChanges returns all new changes and the revision up to which they are complete. The changes of the first
// prefix come first, and ofFirst is their number.
func takeChanges(all []*watchedPrefix) (changes []*storage.Event, ofFirst int, progress int64, err error) {
	for i, f := range all {
		if changes, f.progress, err = f.Take(changes); err != nil {
			return nil, 0, 0, fmt.Errorf("watch CRDs and APIServices: %w", err)
		}
		if i == 0 {
			ofFirst, progress = len(changes), f.progress
		}
		progress = min(progress, f.progress)
	}
	return changes, ofFirst, progress, nil
}
