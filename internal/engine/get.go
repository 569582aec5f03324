package engine

import (
	"context"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Get reads one object. resourceVersion is the parameter of the request: "", "0", or a revision to wait for.
func (e *Engine) Get(ctx context.Context, t Target, resourceVersion string) (Object, error) {
	if t.Subresource != "" {
		if err := e.checkSubresource(t); err != nil {
			return Object{}, err
		}
	}
	if t.Version.Definition.Behavior.Compute != nil {
		return e.getComputed(ctx, t)
	}
	snap, err := e.notOlderThan(ctx, resourceVersion)
	if err != nil {
		return Object{}, err
	}
	rec := snap.Get(t.Version.Definition.Key(t.Namespace, t.Name))
	if rec == nil {
		return Object{}, apierrors.NewNotFound(t.Version.GroupResource(), t.Name)
	}
	if t.Subresource == "scale" {
		return e.readScale(ctx, t, rec)
	}
	if d, ok := rec.Derived.Load().(*derived); ok && d.servedAs.Load() == t.Version {
		return Object{Version: t.Version, Revision: rec.Modified, Record: rec}, nil
	}
	return e.readerOf(t).read(ctx, rec)
}

// Stored returns the stored JSON of an object, or nil if the object does not exist. The caller must not modify the
// JSON.
func (e *Engine) Stored(t Target) []byte {
	rec := e.Store.Head().Get(t.Version.Definition.Key(t.Namespace, t.Name))
	if rec == nil {
		return nil
	}
	return rec.Value
}

// notOlderThan returns a snapshot at or after resourceVersion. If resourceVersion is "", it returns the newest
// state of the store.
func (e *Engine) notOlderThan(ctx context.Context, resourceVersion string) (*storage.Snapshot, error) {
	if resourceVersion == "" {
		snap, err := e.Store.Fresh(ctx)
		if err != nil {
			err = storageError(err)
		}
		return snap, err
	}
	revision, err := parseRevision(resourceVersion)
	if err != nil {
		return nil, unknownError(err.Error())
	}
	return e.waitForRevision(ctx, revision)
}

// newest returns the newest state of the store, including writes of other processes.
func (e *Engine) newest(ctx context.Context) (*storage.Snapshot, error) {
	return e.notOlderThan(ctx, "")
}

// Catalog returns a catalog of all stored kinds, including kinds that another process has written.
func (e *Engine) Catalog(ctx context.Context) (*resource.Catalog, error) {
	snap, err := e.newest(ctx)
	if err != nil {
		return nil, err
	}
	catalog, err := e.Live.Wait(ctx, snap.Revision())
	return catalog, storageError(err)
}

// waitForRevision returns a snapshot at or after revision. After 3 s it returns upstream's 504.
func (e *Engine) waitForRevision(ctx context.Context, revision int64) (*storage.Snapshot, error) {
	if head := e.Store.Head(); head.Revision() >= revision {
		return head, nil
	}
	limited, cancel := context.WithTimeout(ctx, futureRevisionTimeout)
	defer cancel()
	head, err := e.Store.Wait(limited, revision)
	if err == nil {
		return head, nil
	}
	if ctx.Err() == nil && limited.Err() != nil {
		return nil, tooLargeRevision(revision, e.Store.Head().Revision())
	}
	return nil, storageError(err)
}

// parseRevision parses the resourceVersion of a request. The result for "" is 0. Errors equal upstream's.
func parseRevision(resourceVersion string) (int64, error) {
	if resourceVersion == "" {
		return 0, nil
	}
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, field.Invalid(field.NewPath("resourceVersion"), resourceVersion, err.Error())
	}
	return int64(min(revision, 1<<63-1)), nil
}

// checkSubresource returns a 404 if the kind does not have the target's subresource.
func (e *Engine) checkSubresource(t Target) error {
	v := t.Version
	if t.Subresource == "" || t.Subresource == "status" && v.Status ||
		t.Subresource == "scale" && v.Scale != nil || v.Subresource(t.Subresource) != nil {
		return nil
	}
	return notServed()
}
