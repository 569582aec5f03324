package informer

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

// watcher watches the metadata of the objects of one kind through a Feed or, without a Feed, through client-go's
// Reflector. It stores no objects, because there is a watcher for each served kind.
type watcher struct {
	informer *Informer
	kind     Kind
	ctx      context.Context // done when the watch has stopped
	stop     context.CancelFunc
	started  time.Time
	synced   atomic.Bool
}

// run lists and watches through the API until ctx is done.
func (w *watcher) run() {
	client := w.informer.metadata.Resource(w.kind.GroupVersionResource)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, options)
			if apierrors.IsNotFound(err) {
				w.informer.groups.Add(w.kind.Group)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
	}
	options := cache.ReflectorOptions{Name: w.kind.Resource}
	reflector := cache.NewReflectorWithOptions(source, &metav1.PartialObjectMetadata{}, forwardingStore{w}, options)
	reflector.RunWithContext(w.ctx)
}

// forwardingStore is a ReflectorStore that stores nothing and forwards the changes to its watcher.
type forwardingStore struct{ *watcher }

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

// dropUnusedFields removes the metadata that no controller reads.
func dropUnusedFields(object any) *metav1.PartialObjectMetadata {
	m := object.(*metav1.PartialObjectMetadata) // the Reflector takes nothing else
	m.ManagedFields, m.Labels, m.Annotations = nil, nil, nil
	return m
}

// forwardList reports a new list of all objects.
func (w *watcher) forwardList(listed []*metav1.PartialObjectMetadata, revision int64) {
	if w.ctx.Err() != nil {
		return
	}
	w.informer.onChange(Change{Kind: w.kind, Listed: listed, AsOf: uint64(revision)})
	w.synced.Store(true)
	if w.kind.GroupKind() == CRDKind {
		w.informer.groups.Add(allGroups)
	}
}

func (w *watcher) forward(m *metav1.PartialObjectMetadata, deleted bool) {
	if w.ctx.Err() != nil {
		return
	}
	w.informer.onChange(Change{Kind: w.kind, Object: m, Deleted: deleted})
	id := w.kind.GroupKind()
	if id == CRDKind && deleted {
		w.informer.stopForCRD(m.Name, ResourceVersion(m))
	}
	if id == CRDKind || id == APIServiceKind {
		_, group, _ := strings.Cut(m.Name, ".")
		w.informer.groups.Add(group)
	}
}

// ResourceVersion returns the resource version of an object as a number, or 0 if it has none. Resource versions of
// one resource can be compared (KEP-5504). In Trellis, those of all resources can be compared.
func ResourceVersion(m *metav1.PartialObjectMetadata) uint64 {
	v, _ := strconv.ParseUint(m.ResourceVersion, 10, 64)
	return v
}
