package controllers

import (
	"context"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// kindWatcher follows the metadata of one kind's objects: it is told of them by a Feed or, where there is none, by client-go's
// Reflector. There is one for every kind that is served, so it keeps no object.
type kindWatcher struct {
	watchers *kindWatchers
	kind     kind
	ctx      context.Context // done when the kind is followed no longer
	stop     context.CancelFunc
	started  time.Time
	synced   atomic.Bool
}

// run lists and watches through the API until ctx is done.
func (f *kindWatcher) run() {
	client := f.watchers.clients.metadata.Resource(f.kind.GroupVersionResource)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, options)
			if apierrors.IsNotFound(err) {
				f.watchers.markDirty(f.kind.Group)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
	}
	options := cache.ReflectorOptions{Name: f.kind.Resource}
	cache.NewReflectorWithOptions(source, &metav1.PartialObjectMetadata{}, forwardingStore{f}, options).RunWithContext(f.ctx)
}

// forwardingStore is where a Reflector puts what it hears: nowhere, a follower passes it on.
type forwardingStore struct{ *kindWatcher }

// Add implements cache.ReflectorStore.
func (p forwardingStore) Add(object any) error { return p.Update(object) }

// Update implements cache.ReflectorStore.
func (p forwardingStore) Update(object any) error {
	p.forward(dropUnusedFields(object), false)
	return nil
}

// Delete implements cache.ReflectorStore.
func (p forwardingStore) Delete(object any) error {
	p.forward(dropUnusedFields(object), true)
	return nil
}

// Replace implements cache.ReflectorStore.
func (p forwardingStore) Replace(list []any, version string) error {
	listed := make([]*metav1.PartialObjectMetadata, len(list))
	for i := range list {
		listed[i] = dropUnusedFields(list[i])
	}
	asOf, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		asOf = math.MaxInt64
	}
	p.forwardList(listed, asOf)
	return nil
}

// Resync implements cache.ReflectorStore.
func (forwardingStore) Resync() error { return nil }

// dropUnusedFields lets go of what no loop reads.
func dropUnusedFields(object any) *metav1.PartialObjectMetadata {
	m := object.(*metav1.PartialObjectMetadata) // the Reflector takes nothing else
	m.ManagedFields, m.Labels, m.Annotations = nil, nil, nil
	return m
}

// forwardList passes on a whole list.
func (f *kindWatcher) forwardList(listed []*metav1.PartialObjectMetadata, revision int64) {
	if f.ctx.Err() != nil {
		return
	}
	f.watchers.onChange(change{kind: f.kind, listed: listed, asOf: uint64(revision)})
	f.synced.Store(true)
	if f.kind.groupKind() == crdKind {
		f.watchers.markDirty(allGroups)
	}
}

func (f *kindWatcher) forward(m *metav1.PartialObjectMetadata, deleted bool) {
	if f.ctx.Err() != nil {
		return
	}
	f.watchers.onChange(change{kind: f.kind, object: m, deleted: deleted})
	if f.kind.groupKind() == crdKind {
		if deleted {
			f.watchers.stopForCRD(m.Name, resourceVersionOf(m))
		}
		_, group, _ := strings.Cut(m.Name, ".")
		f.watchers.markDirty(group)
	}
}
