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

// follower follows the metadata of one kind's objects: it is told of them by a Feed or, where there is none, by client-go's
// Reflector. There is one for every kind that is served, so it keeps no object.
type follower struct {
	kinds   *kinds
	kind    kind
	ctx     context.Context // done when the kind is followed no longer
	stop    context.CancelFunc
	started time.Time
	synced  atomic.Bool
}

// run lists and watches through the API until ctx is done.
func (f *follower) run() {
	client := f.kinds.clients.metadata.Resource(f.kind.GroupVersionResource)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, options)
			if apierrors.IsNotFound(err) {
				f.kinds.mark(f.kind.Group)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
	}
	options := cache.ReflectorOptions{Name: f.kind.Resource}
	cache.NewReflectorWithOptions(source, &metav1.PartialObjectMetadata{}, passing{f}, options).RunWithContext(f.ctx)
}

// passing is where a Reflector puts what it hears: nowhere, a follower passes it on.
type passing struct{ *follower }

// Add implements cache.ReflectorStore.
func (p passing) Add(object any) error { return p.Update(object) }

// Update implements cache.ReflectorStore.
func (p passing) Update(object any) error {
	p.pass(strip(object), false)
	return nil
}

// Delete implements cache.ReflectorStore.
func (p passing) Delete(object any) error {
	p.pass(strip(object), true)
	return nil
}

// Replace implements cache.ReflectorStore.
func (p passing) Replace(list []any, version string) error {
	listed := make([]*metav1.PartialObjectMetadata, len(list))
	for i := range list {
		listed[i] = strip(list[i])
	}
	asOf, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		asOf = math.MaxInt64
	}
	p.replace(listed, asOf)
	return nil
}

// Resync implements cache.ReflectorStore.
func (passing) Resync() error { return nil }

// strip lets go of what no loop reads.
func strip(object any) *metav1.PartialObjectMetadata {
	m := object.(*metav1.PartialObjectMetadata) // the Reflector takes nothing else
	m.ManagedFields, m.Labels, m.Annotations = nil, nil, nil
	return m
}

// replace passes on a whole list.
func (f *follower) replace(listed []*metav1.PartialObjectMetadata, revision int64) {
	if f.ctx.Err() != nil {
		return
	}
	f.kinds.onChange(change{kind: f.kind, listed: listed, asOf: uint64(revision)})
	f.synced.Store(true)
	if f.kind.groupKind() == crdKind {
		f.kinds.mark(allGroups)
	}
}

func (f *follower) pass(m *metav1.PartialObjectMetadata, deleted bool) {
	if f.ctx.Err() != nil {
		return
	}
	f.kinds.onChange(change{kind: f.kind, object: m, deleted: deleted})
	if f.kind.groupKind() == crdKind {
		if deleted {
			f.kinds.unfollow(m.Name, versionOf(m))
		}
		_, group, _ := strings.Cut(m.Name, ".")
		f.kinds.mark(group)
	}
}
