package read

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/scales"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Get reads one object. resourceVersion is the parameter of the request: "", "0", or a revision to wait for.
func (r *Reader) Get(ctx context.Context, t verb.Target, resourceVersion string) (record.Object, error) {
	if t.Subresource != "" {
		if err := t.CheckSubresource(); err != nil {
			return record.Object{}, err
		}
	}
	if t.Version.Definition.Behavior.Compute != nil {
		return r.getComputed(ctx, t)
	}
	snap, err := r.notOlderThan(ctx, resourceVersion)
	if err != nil {
		return record.Object{}, err
	}
	rec := snap.Get(t.Version.Definition.Key(t.Namespace, t.Name))
	if rec == nil {
		return record.Object{}, apierrors.NewNotFound(t.Version.GroupResource(), t.Name)
	}
	if t.Subresource == "scale" {
		return r.readScale(ctx, t, rec)
	}
	if o, ok := record.Served(rec, t.Version); ok {
		return o, nil
	}
	return r.Of(t).Read(ctx, rec)
}

// readScale handles a GET of /scale.
func (r *Reader) readScale(ctx context.Context, t verb.Target, rec *storage.Record) (record.Object, error) {
	parent, err := r.At(t.Version).Tree(ctx, record.Packed(rec), rec.Modified)
	if err != nil {
		return record.Object{}, err
	}
	scale, found, err := scales.Of(t.Version.Scale, parent)
	if err != nil {
		return record.Object{}, verb.Unknown(err)
	}
	if !found {
		return record.Object{}, apierrors.NewInternalError(fmt.Errorf(
			"the spec replicas field %q does not exist", scales.DotPath(t.Version.Scale.SpecReplicas)))
	}
	return record.NewObject(scales.Version, rec.Modified, object.Pack(scale, 0)), nil
}

// Stored returns the stored JSON of an object, or nil if the object does not exist. The caller must not modify the
// JSON.
func (r *Reader) Stored(t verb.Target) []byte {
	rec := r.Store.Head().Get(t.Version.Definition.Key(t.Namespace, t.Name))
	if rec == nil {
		return nil
	}
	return rec.Value
}

// notOlderThan returns a snapshot at or after resourceVersion. If resourceVersion is "", it returns the newest
// state of the store.
func (r *Reader) notOlderThan(ctx context.Context, resourceVersion string) (*storage.Snapshot, error) {
	if resourceVersion == "" {
		snap, err := r.Store.Fresh(ctx)
		if err != nil {
			err = verb.Status(err)
		}
		return snap, err
	}
	revision, err := parseRevision(resourceVersion)
	if err != nil {
		return nil, verb.Unknown(err)
	}
	return r.waitForRevision(ctx, revision)
}

// Newest returns the newest state of the store, including writes of other processes.
func (r *Reader) Newest(ctx context.Context) (*storage.Snapshot, error) {
	return r.notOlderThan(ctx, "")
}

// Catalog returns a catalog of all stored kinds, including kinds that another process has written.
func (r *Reader) Catalog(ctx context.Context) (*catalog.Catalog, error) {
	snap, err := r.Newest(ctx)
	if err != nil {
		return nil, err
	}
	catalog, err := r.Live.Wait(ctx, snap.Revision())
	return catalog, verb.Status(err)
}

// futureRevisionTimeout is how long a read waits for a revision that the store has not reached.
const futureRevisionTimeout = 3 * time.Second

// waitForRevision returns a snapshot at or after revision. After 3 s it returns upstream's 504.
func (r *Reader) waitForRevision(ctx context.Context, revision int64) (*storage.Snapshot, error) {
	if head := r.Store.Head(); head.Revision() >= revision {
		return head, nil
	}
	limited, cancel := context.WithTimeout(ctx, futureRevisionTimeout)
	defer cancel()
	head, err := r.Store.Wait(limited, revision)
	if err == nil {
		return head, nil
	}
	if ctx.Err() == nil && limited.Err() != nil {
		return nil, tooLargeRevision(revision, r.Store.Head().Revision())
	}
	return nil, verb.Status(err)
}

// tooLargeRevision returns the 504 for a revision that the store has not reached.
func tooLargeRevision(requested, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", requested, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeResourceVersionTooLarge,
		Message: "Too large resource version",
	}}
	return err
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

// computed returns a snapshot of the objects of a computed kind. The snapshot has no revision.
func computed(ctx context.Context, d *resource.Definition) (*storage.Snapshot, error) {
	var l storage.Loader
	objects := d.Behavior.Compute(ctx)
	slices.SortFunc(objects, func(a, b object.Tree) int { return strings.Compare(object.Name(a), object.Name(b)) })
	for _, t := range objects {
		rec := record.FromPacked(object.Pack(t, 0))
		rec.Key = d.Key("", object.Name(t))
		if err := l.Add(rec); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
	}
	return l.Snapshot(0), nil
}

func (r *Reader) getComputed(ctx context.Context, t verb.Target) (record.Object, error) {
	d := t.Version.Definition
	snap, err := computed(ctx, d)
	if err != nil {
		return record.Object{}, err
	}
	rec := snap.Get(d.Key("", t.Name))
	if rec == nil { // upstream uses the singular in this error
		gr := schema.GroupResource{Group: d.Group, Resource: d.Names.Singular}
		return record.Object{}, apierrors.NewNotFound(gr, t.Name)
	}
	return r.Of(t).Read(ctx, rec)
}
