package read

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

// Feed notifies followers in this process of metadata changes. A follower receives the changes of all objects of
// one kind. The Feed uses one cursor and one goroutine for all kinds, because a watch of each kind would need about
// 20 KiB.
type Feed struct {
	reader      *Reader
	newFollower chan struct{} // signals that pending has a new follower

	mu        sync.Mutex
	pending   []*follower          // followers without the initial list
	followers map[string]*follower // by key prefix
}

// follower receives the changes of one kind.
type follower struct {
	onList       func(objects []*metav1.PartialObjectMetadata, revision int64)
	onChange     func(object *metav1.PartialObjectMetadata, deleted bool)
	prefix       string
	listRevision int64 // revision of the list, used only by the goroutine of Run; events up to it are skipped
	stopped      bool  // guarded by Feed.mu
}

// NewFeed returns a Feed of the objects in the store. Notifications start with the call of Run.
func (r *Reader) NewFeed() *Feed {
	return &Feed{reader: r, newFollower: make(chan struct{}, 1), followers: map[string]*follower{}}
}

// Follow starts to notify a follower of the objects of a kind, until stop is called. It calls the functions from
// the goroutine of Run. A call that is running may end after stop has returned. ok is false for a kind that is not
// served or not stored. A kind has at most one follower: a new follower replaces the earlier one.
//
// onList receives all objects of the kind at a revision. It is called first, and again if changes were missed.
// onChange receives each later change. For a deleted object, the resourceVersion is that of the deletion. The
// functions own the objects, which have only the name, namespace, UID, resourceVersion, generation,
// deletionTimestamp, finalizers and owner references.
func (f *Feed) Follow(r schema.GroupVersionResource,
	onList func(objects []*metav1.PartialObjectMetadata, revision int64),
	onChange func(object *metav1.PartialObjectMetadata, deleted bool)) (stop func(), ok bool) {
	v := f.reader.Live.Load().Find(r.Group, r.Version, r.Resource)
	if v == nil || !v.Definition.Stored() {
		return nil, false
	}
	fw := &follower{onList: onList, onChange: onChange, prefix: v.Definition.Prefix, listRevision: math.MaxInt64}
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.followers[fw.prefix]; old != nil {
		old.stopped = true
	}
	f.followers[fw.prefix] = fw
	f.pending = append(f.pending, fw)
	select {
	case f.newFollower <- struct{}{}:
	default:
	}
	return func() { f.unfollow(fw) }, true
}

func (f *Feed) unfollow(fw *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fw.stopped = true
	if f.followers[fw.prefix] == fw {
		delete(f.followers, fw.prefix)
	}
}

// Run notifies the followers until ctx ends or the store fails. It returns the error of ctx or of the store. It
// must be called only once.
func (f *Feed) Run(ctx context.Context) error {
	for {
		err := f.dispatchEvents(ctx)
		if !storage.MissedEvents(err) {
			return err
		}
		f.mu.Lock()
		f.pending = f.pending[:0]
		for _, fw := range f.followers {
			f.pending = append(f.pending, fw)
		}
		f.mu.Unlock()
	}
}

// allKeys is the prefix of all storage keys.
const allKeys = "/registry/"

// dispatchEvents notifies the followers until it has missed an event.
func (f *Feed) dispatchEvents(ctx context.Context) error {
	cursor, err := f.reader.Store.Watch(ctx, allKeys, f.reader.Store.Head().Revision())
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

// listPending sends the current objects to the followers in pending.
func (f *Feed) listPending() {
	f.mu.Lock()
	pending := slices.DeleteFunc(f.pending, func(fw *follower) bool { return fw.stopped })
	f.pending = nil
	f.mu.Unlock()
	for _, fw := range pending {
		head := f.reader.Store.Head()
		objects := make([]*metav1.PartialObjectMetadata, 0, head.Count(fw.prefix, ""))
		for rec := range head.Walk(fw.prefix, "") {
			objects = append(objects, summarize(rec, rec.Modified))
		}
		fw.listRevision = head.Revision()
		fw.onList(objects, fw.listRevision)
	}
}

// dispatch passes an event to the follower of its kind.
func (f *Feed) dispatch(ev *storage.Event) {
	f.mu.Lock()
	var fw *follower
	for end := len(allKeys); fw == nil; {
		i := strings.IndexByte(ev.Key[end:], '/')
		if i < 0 {
			break
		}
		end += i + 1
		fw = f.followers[ev.Key[:end]]
	}
	f.mu.Unlock()
	switch {
	case fw == nil || ev.Revision <= fw.listRevision:
	case ev.Record != nil:
		fw.onChange(summarize(ev.Record, ev.Revision), false)
	default:
		fw.onChange(summarize(ev.Previous, ev.Revision), true)
	}
}

// summarize returns the part of an object's metadata that followers receive. All strings are copied, because a
// substring would keep the whole object in memory.
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
