package engine

import (
	"context"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// reader reads records at one version. Most records are served as the stored bytes. The remaining records are
// decoded, defaulted, converted and encoded once, and the result is cached for all readers.
//
// A reader compiles no schema before it reads an object, so a kind that has no objects costs nothing.
type reader struct {
	engine   *Engine
	version  *resource.Version
	convert  bool // objects at the storage version need a conversion
	remote   bool // a webhook converts: one call for many objects is faster, and labels may change
	asStored bool // Target.AsStored
}

func (e *Engine) readerAt(v *resource.Version) reader {
	return reader{engine: e, version: v, convert: v.ConvertFrom != nil, remote: conversion.UsesWebhook(v.Definition)}
}

// readerOf returns the reader for the target of a request.
func (e *Engine) readerOf(t Target) reader {
	r := e.readerAt(t.Version)
	if r.asStored = t.AsStored; r.asStored {
		r.convert, r.remote = false, false
	}
	return r
}

// fingerprint identifies the rules for pruning and defaulting at v. It is 0 for built-in kinds, whose Go type does
// not change while the server runs.
func fingerprint(v *resource.Version) (uint64, error) {
	if v.Schema == nil {
		return 0, nil
	}
	s, err := schemaOf(v)
	if err != nil {
		return 0, err
	}
	return s.Fingerprint(), nil
}

// schemaOf returns the schema of a custom version.
func schemaOf(v *resource.Version) (*crd.Compiled, error) {
	s, err := v.Schema()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return s, nil
}

// Special fingerprints of custom objects. Other values are fingerprints of schemas.
const (
	fingerprintUnknown      = 0 // not computed yet: see checkCanonical
	fingerprintNotCanonical = 1 // pruning or defaulting would change the stored object
)

// mayFail reports whether reading an object at r's version may fail.
func (r reader) mayFail() bool {
	return r.version.Definition.Conversion() != resource.Conversion{}
}

// read returns the object in rec at r's version.
func (r reader) read(ctx context.Context, rec *storage.Record) (Object, error) {
	if !r.servesAsStored(rec) {
		recs, err := r.converted(ctx, []*storage.Record{rec})
		if err != nil {
			return Object{}, err
		}
		rec = recs[0]
	}
	return Object{Version: r.version, Revision: rec.Modified, Record: rec}, nil
}

// preconvert converts the records with the kind's webhook. Selectors and the method read then use the converted
// records. For a kind without a webhook it returns recs unchanged. Elements of recs may be nil.
func (r reader) preconvert(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error) {
	if !r.remote {
		return recs, nil
	}
	var missing []*storage.Record
	var indices []int
	for i, rec := range recs {
		if rec != nil && !r.servesAsStored(rec) {
			missing, indices = append(missing, rec), append(indices, i)
		}
	}
	if len(missing) == 0 {
		return recs, nil
	}
	converted, err := r.converted(ctx, missing)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(recs)
	for i, at := range indices {
		out[at] = converted[i]
	}
	return out, nil
}

// converted converts recs to r's version. It uses cached conversions where possible.
func (r reader) converted(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error) {
	now := r.engine.clock()
	key := conversionKeyAt(r.version, r.engine.epochOf(r.version.Definition, now))
	return r.engine.conversions.get(ctx, key, now, recs, r.convertAll)
}

// servesAsStored reports whether the stored bytes of rec can be served at r's version. It caches a positive
// result in rec.
func (r reader) servesAsStored(rec *storage.Record) bool {
	d := derive(rec)
	if d.servedAs.Load() == r.version {
		return true
	}
	p := packed(rec)
	if p.Fingerprint() == fingerprintUnknown && r.version.Schema != nil && !r.asStored {
		p = checkCanonical(rec, r.version.Definition)
	}
	if !r.unchanged(p) {
		return false
	}
	if !r.asStored {
		d.servedAs.Store(r.version)
	}
	return true
}

// checkCanonical computes the fingerprint of a custom object that was loaded from the store. If the object is
// canonical, so that pruning and defaulting do not change it, the fingerprint is that of the schema. Otherwise it
// is fingerprintNotCanonical.
func checkCanonical(rec *storage.Record, d *resource.Definition) object.Packed {
	p, found := packed(rec), uint64(fingerprintNotCanonical)
	for _, v := range d.Versions {
		if !p.HasAPIVersion(v.APIVersion) {
			continue
		}
		s, err := schemaOf(v)
		if err != nil {
			return p
		}
		if t, err := p.Tree(0); err == nil && s.IsNormalized(t) {
			found = s.Fingerprint()
		}
		break
	}
	derive(rec).fingerprint.Store(found)
	return p.Header.WithJSON(rec.Value, found)
}

// unchanged reports whether p can be served at r's version with only its apiVersion changed. This requires that
// neither p's storage version nor r's version prunes or defaults anything.
func (r reader) unchanged(p object.Packed) bool {
	if r.convert || p.MustDecode() {
		return false
	}
	if r.asStored {
		return true
	}
	want, err := fingerprint(r.version)
	if err != nil || p.Fingerprint() != want {
		return false
	}
	if r.version.Schema == nil || p.HasAPIVersion(r.version.APIVersion) {
		return true
	}
	for _, v := range r.version.Definition.Versions {
		if p.HasAPIVersion(v.APIVersion) {
			fp, err := fingerprint(v)
			return err == nil && fp == want && conversion.Trivial(v, r.version)
		}
	}
	return false
}

// convertAll converts recs to r's version. It does not use the cache.
func (r reader) convertAll(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error) {
	fp, err := fingerprint(r.version)
	if err != nil {
		return nil, err
	}
	trees, err := r.trees(ctx, recs)
	if err != nil {
		return nil, err
	}
	out := make([]*storage.Record, len(recs))
	for i, rec := range recs {
		out[i] = recordOf(object.Pack(trees[i], fp))
		out[i].Key, out[i].Created, out[i].Modified, out[i].Expires = rec.Key, rec.Created, rec.Modified, rec.Expires
	}
	return out, nil
}

// tree decodes p at r's version and sets resourceVersion to revision. If revision is 0, it sets no resourceVersion.
func (r reader) tree(ctx context.Context, p object.Packed, revision int64) (object.Tree, error) {
	t, err := r.decode(p, revision)
	if err != nil || r.asStored || object.String(t, "apiVersion") == r.version.APIVersion {
		return t, err
	}
	objects := []object.Tree{t}
	err = r.engine.converter().Convert(ctx, objects, r.version)
	return objects[0], storageError(err)
}

// trees decodes the objects in recs at r's version, without a resourceVersion. If the kind has a webhook, it converts
// the objects in one call.
func (r reader) trees(ctx context.Context, recs []*storage.Record) (out []object.Tree, err error) {
	out = make([]object.Tree, len(recs))
	for i, rec := range recs {
		if out[i], err = r.decode(packed(rec), 0); err != nil {
			return nil, err
		}
	}
	if !r.asStored {
		err = storageError(r.engine.converter().Convert(ctx, out, r.version))
	}
	return out, err
}

// decode decodes p at the version at which it is stored, and applies that version's defaults. The defaults of r's
// version apply only to request bodies and to the results of a webhook.
func (r reader) decode(p object.Packed, revision int64) (object.Tree, error) {
	t, err := p.Tree(revision)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	from := r.version.Definition.Version(object.String(t, "apiVersion"))
	if from == nil || from.Schema == nil || r.unchanged(p) {
		return t, nil
	}
	s, err := schemaOf(from)
	if err == nil {
		s.NormalizeStored(t)
	}
	return t, err
}

// asInternalError converts an error without a Status to a 500. It returns other errors unchanged.
func asInternalError(err error) error {
	var status *apierrors.StatusError
	if err == nil || errors.As(err, &status) {
		return err
	}
	return apierrors.NewInternalError(err)
}

func (e *Engine) converter() conversion.Converter { return conversion.Converter{Webhook: e.Webhook} }
