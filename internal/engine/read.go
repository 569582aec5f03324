package engine

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// reader reads records at one version. Most pass as the bytes they are; the
// others are decoded, converted, pruned and encoded again, once for all readers.
type reader struct {
	version     *resource.Version
	fingerprint uint64
	convert     bool // objects of the storage version do not pass
	views       *views
}

func (e *Engine) reader(v *resource.Version) (reader, error) {
	fp, err := fingerprint(v)
	if err != nil {
		return reader{}, err
	}
	return reader{version: v, fingerprint: fp, convert: v.ConvertFrom != nil, views: &e.views}, nil
}

// fingerprint is of what pruning and defaulting at v do; 0 for built-in kinds, whose Go type
// does not change under a running server.
func fingerprint(v *resource.Version) (uint64, error) {
	if v.Schema == nil {
		return 0, nil
	}
	s, err := v.Schema()
	if err != nil {
		return 0, apierrors.NewInternalError(err)
	}
	return s.Fingerprint(), nil
}

// at returns the object in rec.
func (r reader) at(rec *storage.Record) (Object, error) {
	p := object.Packed(rec.Value)
	if !r.passes(p) {
		viewed, err := r.views.get(r, rec)
		if err != nil {
			return Object{}, err
		}
		p = viewed
	}
	return Object{Version: r.version, Revision: rec.Modified, Packed: p, Record: rec}, nil
}

func (r reader) passes(p object.Packed) bool {
	return !r.convert && p.Fingerprint() == r.fingerprint
}

// view makes what r reads of p from scratch.
func (r reader) view(p object.Packed) (object.Packed, error) {
	t, err := r.tree(p, 0)
	if err != nil {
		return nil, err
	}
	return object.Pack(t, r.fingerprint), nil
}

// tree decodes p at r's version, with resourceVersion set to revision unless that is 0.
func (r reader) tree(p object.Packed, revision int64) (object.Tree, error) {
	t, err := p.Tree(revision)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	from := versionOf(r.version.Definition, object.String(t, "apiVersion"))
	if !r.passes(p) && from != nil && from != r.version {
		if err := prune(from, t); err != nil {
			return nil, err
		}
	}
	if t, err = conversion.Convert(t, from, r.version); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if !r.passes(p) {
		err = prune(r.version, t)
	}
	return t, err
}

// prune drops what v's schema does not know.
func prune(v *resource.Version, t object.Tree) error {
	if v.Schema == nil {
		return nil
	}
	s, err := v.Schema()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	s.Prune(t)
	return nil
}

func versionOf(d *resource.Definition, apiVersion string) *resource.Version {
	for _, v := range d.Versions {
		if v.APIVersion == apiVersion {
			return v
		}
	}
	return nil
}
