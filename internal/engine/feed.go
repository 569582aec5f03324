package engine

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Feed tells followers in this process of the metadata of all objects of the kinds they follow. It is one cursor and
// one goroutine for all kinds, where a watch of each would be some 20 KiB a kind.
type Feed struct {
	engine *Engine
	newFollower chan struct{} // receives when somebody has joined

	mu        sync.Mutex
	pending   []*follower
	followers map[string]*follower // by prefix
}

// follower is one follower's part of the feed.
type follower struct {
	onList  func(objects []*metav1.PartialObjectMetadata, revision int64)
	onChange func(object *metav1.PartialObjectMetadata, deleted bool)
	prefix  string
	listRevision   int64 // events up to here are in the list; of the goroutine that runs Run
	stopped bool  // guarded by Feed.mu
}

// NewFeed returns a Feed of what e stores, which tells nobody anything until Run.
func (e *Engine) NewFeed() *Feed {
	return &Feed{engine: e, newFollower: make(chan struct{}, 1), followers: map[string]*follower{}}
}

// Follow has one goroutine call the functions until stop is called, after which a call that has begun may still come to its end:
// listed first, and again where changes have been missed, with all objects of a kind as of a revision; changed for each change
// since, for one that is deleted with the revision of the deletion. Of an object they are told the name, namespace, uid,
// resourceVersion, generation, deletionTimestamp, finalizers and owner references, which are theirs. It returns false for a kind
// that is not served or not stored. Who else followed the kind is told no more.
func (f *Feed) Follow(r schema.GroupVersionResource, listed func(objects []*metav1.PartialObjectMetadata, revision int64),
	changed func(object *metav1.PartialObjectMetadata, deleted bool)) (stop func(), ok bool) {
	v := f.engine.Live.Load().Find(r.Group, r.Version, r.Resource)
	if v == nil || !v.Definition.Stored() {
		return nil, false
	}
	one := &follower{onList: listed, onChange: changed, prefix: v.Definition.Prefix, listRevision: math.MaxInt64}
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.followers[one.prefix]; old != nil {
		old.stopped = true
	}
	f.followers[one.prefix] = one
	f.pending = append(f.pending, one)
	select {
	case f.newFollower <- struct{}{}:
	default:
	}
	return func() { f.unfollow(one) }, true
}

func (f *Feed) unfollow(one *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one.stopped = true
	if f.followers[one.prefix] == one {
		delete(f.followers, one.prefix)
	}
}

// Run tells the followers until ctx ends, whose error it then returns, or the store fails. It runs once.
func (f *Feed) Run(ctx context.Context) error {
	for {
		err := f.dispatchEvents(ctx)
		if !storage.MissedEvents(err) {
			return err
		}
		f.mu.Lock()
		f.pending = f.pending[:0]
		for _, one := range f.followers {
			f.pending = append(f.pending, one)
		}
		f.mu.Unlock()
	}
}

// allKeys is the prefix of all keys.
const allKeys = "/registry/"

// dispatchEvents tells until a change has been missed.
func (f *Feed) dispatchEvents(ctx context.Context) error {
	cursor, err := f.engine.Store.Watch(ctx, allKeys, f.engine.Store.Head().Revision())
	if err != nil {
		return err
	}
	defer cursor.Close()
	var events []*storage.Event
	for {
		f.listPending()
		if events, _, err = cursor.Take(events[:0]); err != nil {
			return err
		}
		for _, ev := range events {
			f.dispatch(ev)
		}
		clear(events)
		select {
		case <-cursor.Ready():
		case <-f.newFollower:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// listPending gives those who have joined the objects that there are.
func (f *Feed) listPending() {
	f.mu.Lock()
	joining := slices.DeleteFunc(f.pending, func(one *follower) bool { return one.stopped })
	f.pending = nil
	f.mu.Unlock()
	for _, one := range joining {
		head := f.engine.Store.Head()
		objects := make([]*metav1.PartialObjectMetadata, 0, head.Count(one.prefix, ""))
		for rec := range head.Walk(one.prefix, "") {
			objects = append(objects, summarize(rec, rec.Modified))
		}
		one.listRevision = head.Revision()
		one.onList(objects, one.listRevision)
	}
}

// dispatch passes an event on to who follows its kind.
func (f *Feed) dispatch(ev *storage.Event) {
	f.mu.Lock()
	var one *follower
	for end := len(allKeys); one == nil; {
		i := strings.IndexByte(ev.Key[end:], '/')
		if i < 0 {
			break
		}
		end += i + 1
		one = f.followers[ev.Key[:end]]
	}
	f.mu.Unlock()
	switch {
	case one == nil || ev.Revision <= one.listRevision:
	case ev.Record != nil:
		one.onChange(summarize(ev.Record, ev.Revision), false)
	default:
		one.onChange(summarize(ev.Previous, ev.Revision), true)
	}
}

// summarize is what followers hear of an object. It is copied, for it would keep all of the object in memory.
func summarize(rec *storage.Record, revision int64) *metav1.PartialObjectMetadata {
	m, owners, err := object.ScanOwners(rec.Value)
	if err != nil {
		m = &object.Meta{}
	}
	out := &metav1.PartialObjectMetadata{}
	out.Name, out.Namespace = strings.Clone(m.Name), strings.Clone(m.Namespace)
	out.UID, out.ResourceVersion = types.UID(strings.Clone(string(m.UID))), strconv.FormatInt(revision, 10)
	out.Generation, out.OwnerReferences = m.Generation, owners
	for _, finalizer := range m.Finalizers {
		out.Finalizers = append(out.Finalizers, strings.Clone(finalizer))
	}
	if at, err := time.Parse(time.RFC3339, m.DeletionTimestamp); err == nil {
		out.DeletionTimestamp = &metav1.Time{Time: at}
	}
	return out
}
