package read

import (
	"context"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

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
