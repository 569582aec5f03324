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
	joined chan struct{} // receives when somebody has joined

	mu        sync.Mutex
	joining   []*follow
	following map[string]*follow // by prefix
}

// follow is one follower's part of the feed.
type follow struct {
	listed  func(objects []*metav1.PartialObjectMetadata, revision int64)
	changed func(object *metav1.PartialObjectMetadata, deleted bool)
	prefix  string
	floor   int64 // events up to here are in the list; of the goroutine that runs Run
	stopped bool  // guarded by Feed.mu
}

// NewFeed returns a Feed of what e stores, which tells nobody anything until Run.
func (e *Engine) NewFeed() *Feed {
	return &Feed{engine: e, joined: make(chan struct{}, 1), following: map[string]*follow{}}
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
	one := &follow{listed: listed, changed: changed, prefix: v.Definition.Prefix, floor: math.MaxInt64}
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.following[one.prefix]; old != nil {
		old.stopped = true
	}
	f.following[one.prefix] = one
	f.joining = append(f.joining, one)
	select {
	case f.joined <- struct{}{}:
	default:
	}
	return func() { f.leave(one) }, true
}

func (f *Feed) leave(one *follow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one.stopped = true
	if f.following[one.prefix] == one {
		delete(f.following, one.prefix)
	}
}

// Run tells the followers until ctx ends, whose error it then returns, or the store fails. It runs once.
func (f *Feed) Run(ctx context.Context) error {
	for {
		err := f.run(ctx)
		if !storage.MissedEvents(err) {
			return err
		}
		f.mu.Lock()
		f.joining = f.joining[:0]
		for _, one := range f.following {
			f.joining = append(f.joining, one)
		}
		f.mu.Unlock()
	}
}

// everything is the prefix of all keys.
const everything = "/registry/"

// run tells until a change has been missed.
func (f *Feed) run(ctx context.Context) error {
	cursor, err := f.engine.Store.Watch(ctx, everything, f.engine.Store.Head().Revision())
	if err != nil {
		return err
	}
	defer cursor.Close()
	var events []*storage.Event
	for {
		f.list()
		if events, _, err = cursor.Take(events[:0]); err != nil {
			return err
		}
		for _, ev := range events {
			f.tell(ev)
		}
		clear(events)
		select {
		case <-cursor.Ready():
		case <-f.joined:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// list gives those who have joined the objects that there are.
func (f *Feed) list() {
	f.mu.Lock()
	joining := slices.DeleteFunc(f.joining, func(one *follow) bool { return one.stopped })
	f.joining = nil
	f.mu.Unlock()
	for _, one := range joining {
		head := f.engine.Store.Head()
		objects := make([]*metav1.PartialObjectMetadata, 0, head.Count(one.prefix, ""))
		for rec := range head.Walk(one.prefix, "") {
			objects = append(objects, summary(rec, rec.Modified))
		}
		one.floor = head.Revision()
		one.listed(objects, one.floor)
	}
}

// tell passes an event on to who follows its kind.
func (f *Feed) tell(ev *storage.Event) {
	f.mu.Lock()
	var one *follow
	for end := len(everything); one == nil; {
		i := strings.IndexByte(ev.Key[end:], '/')
		if i < 0 {
			break
		}
		end += i + 1
		one = f.following[ev.Key[:end]]
	}
	f.mu.Unlock()
	switch {
	case one == nil || ev.Revision <= one.floor:
	case ev.Record != nil:
		one.changed(summary(ev.Record, ev.Revision), false)
	default:
		one.changed(summary(ev.Previous, ev.Revision), true)
	}
}

// summary is what followers hear of an object. It is copied, for it would keep all of the object in memory.
func summary(rec *storage.Record, revision int64) *metav1.PartialObjectMetadata {
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
