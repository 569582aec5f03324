package engine

import (
	"context"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/schema"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// reader reads records at one version. Most pass as the bytes they are; the
// others are decoded, shaped, converted and encoded again, once for all readers.
//
// It compiles no schema before it meets an object: a kind that has none costs nothing.
type reader struct {
	version *resource.Version
	convert bool // objects of the storage version do not pass
	views   *views
}

func (e *Engine) reader(v *resource.Version) reader {
	return reader{version: v, convert: v.ConvertFrom != nil, views: &e.views}
}

// fingerprint is of what pruning and defaulting at v do; 0 for built-in kinds, whose Go type
// does not change under a running server.
func fingerprint(v *resource.Version) (uint64, error) {
	if v.Definition.Custom == nil {
		return 0, nil
	}
	s, err := schemaOf(v)
	if err != nil {
		return 0, err
	}
	return s.Fingerprint(), nil
}

// schemaOf returns the schema of a custom version.
func schemaOf(v *resource.Version) (*schema.Schema, error) {
	s, err := v.Schema()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return s, nil
}

// unsettled is the fingerprint of a custom object that reads otherwise than it is stored.
const unsettled = 0

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

// passes reports that p looks at r's version as it is, but for its apiVersion: the version that it was
// stored at, and the one that it is read at, both leave it alone.
func (r reader) passes(p object.Packed) bool {
	if r.convert {
		return false
	}
	want, err := fingerprint(r.version)
	if err != nil || p.Fingerprint() != want {
		return false
	}
	if r.version.Definition.Custom == nil || p.HasAPIVersion(r.version.APIVersion) {
		return true
	}
	for _, v := range r.version.Definition.Versions {
		if p.HasAPIVersion(v.APIVersion) {
			fp, err := fingerprint(v)
			return err == nil && fp == want
		}
	}
	return false
}

// view makes what r reads of p from scratch.
func (r reader) view(p object.Packed) (object.Packed, error) {
	fp, err := fingerprint(r.version)
	if err != nil {
		return nil, err
	}
	t, err := r.tree(p, 0)
	if err != nil {
		return nil, err
	}
	return object.Pack(t, fp), nil
}

// tree decodes p at r's version, with resourceVersion set to revision unless that is 0. It fills in the
// defaults of the version that p is stored at. Those of the version it is read at are for requests.
func (r reader) tree(p object.Packed, revision int64) (object.Tree, error) {
	t, err := p.Tree(revision)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	from := versionOf(r.version.Definition, object.String(t, "apiVersion"))
	custom := r.version.Definition.Custom != nil && !r.passes(p)
	if custom && from != nil {
		s, err := schemaOf(from)
		if err != nil {
			return nil, err
		}
		s.Restore(t)
	}
	if t, err = conversion.Convert(context.TODO(), t, from, r.version); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if custom && from != r.version {
		err = fit(r.version, t)
	}
	return t, err
}

// fit prunes what a conversion to v has made.
func fit(v *resource.Version, t object.Tree) error {
	s, err := schemaOf(v)
	if err != nil {
		return err
	}
	if _, wrong := s.Fit(t); wrong != nil {
		return apierrors.NewInternalError(wrong)
	}
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
