package engine

import (
	"context"
	"errors"
	"slices"
	"strconv"

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
	c := r.version.Definition.Custom
	return r.remote || c != nil && c.Conversion.Declared != ""
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
	if p.Fingerprint() == fingerprintUnknown && r.version.Definition.Custom != nil && !r.asStored {
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
	if r.version.Definition.Custom == nil || p.HasAPIVersion(r.version.APIVersion) {
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
	objects := make([]object.Packed, len(recs))
	for i, rec := range recs {
		objects[i] = packed(rec)
	}
	trees, err := r.trees(ctx, objects)
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
	if r.remote {
		trees, err := r.trees(ctx, []object.Packed{p})
		if err != nil {
			return nil, err
		}
		object.SetResourceVersion(trees[0], strconv.FormatInt(revision, 10))
		return trees[0], nil
	}
	t, from, err := r.decode(p, revision)
	if err != nil || from == r.version || r.asStored {
		return t, err
	}
	return r.engine.convert(ctx, t, from, r.version)
}

// trees decodes objects at r's version, without a resourceVersion. If the kind has a webhook, it converts the
// objects in one call.
func (r reader) trees(ctx context.Context, objects []object.Packed) ([]object.Tree, error) {
	out := make([]object.Tree, len(objects))
	var unconverted []int
	for i, p := range objects {
		var from *resource.Version
		var err error
		if !r.remote {
			out[i], err = r.tree(ctx, p, 0)
		} else if out[i], from, err = r.decode(p, 0); from != r.version {
			unconverted = append(unconverted, i)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(unconverted) == 0 {
		return out, nil
	}
	return out, r.engine.convertByWebhook(ctx, out, unconverted, r.version)
}

// decode decodes p at the version at which it is stored, and applies that version's defaults. It also returns this
// version, or nil if the kind no longer has it. The defaults of r's version apply only to request bodies and to the
// results of a webhook.
func (r reader) decode(p object.Packed, revision int64) (object.Tree, *resource.Version, error) {
	t, err := p.Tree(revision)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	from := versionOf(r.version.Definition, object.String(t, "apiVersion"))
	if r.version.Definition.Custom == nil || from == nil || r.unchanged(p) {
		return t, from, nil
	}
	s, err := schemaOf(from)
	if err != nil {
		return nil, nil, err
	}
	s.NormalizeStored(t)
	return t, from, nil
}

// withoutResourceVersion returns t without its resourceVersion, because webhooks do not receive it. It does not
// modify t.
func withoutResourceVersion(t object.Tree) object.Tree {
	if object.ResourceVersion(t) == "" {
		return t
	}
	t = shallowCopy(t)
	delete(object.Metadata(t), "resourceVersion")
	return t
}

// convertByWebhook converts the objects at the given indices to the version to. It replaces them in objects.
func (e *Engine) convertByWebhook(
	ctx context.Context, objects []object.Tree, indices []int, to *resource.Version,
) error {
	if e.Webhook == nil {
		return apierrors.NewInternalError(
			errors.New("cannot convert object: this server does not call conversion webhooks"))
	}
	in := make([]object.Tree, len(indices))
	for i, at := range indices {
		in[i] = withoutResourceVersion(objects[at])
	}
	out, err := e.Webhook(ctx, to, in)
	if err != nil {
		return storageError(err)
	}
	for i, at := range indices {
		if err := pruneConverted(to, out[i]); err != nil {
			return err
		}
		if _, err := fillDefaults(to, out[i]); err != nil {
			return err
		}
		objects[at] = out[i]
	}
	return nil
}

// convert converts an object of a kind without a webhook, and prunes the result if the kind is custom. from is
// nil if the kind no longer has the version.
func (e *Engine) convert(ctx context.Context, t object.Tree, from, to *resource.Version) (object.Tree, error) {
	out, err := conversion.Convert(ctx, t, from, to)
	if err != nil {
		return nil, asInternalError(err)
	}
	if to.Definition.Custom != nil && from != to {
		err = pruneConverted(to, out)
	}
	return out, err
}

// asInternalError converts an error without a Status to a 500. It returns other errors unchanged.
func asInternalError(err error) error {
	var status *apierrors.StatusError
	if err == nil || errors.As(err, &status) {
		return err
	}
	return apierrors.NewInternalError(err)
}

// pruneConverted prunes the result of a conversion to v.
func pruneConverted(v *resource.Version, t object.Tree) error {
	s, err := schemaOf(v)
	if err != nil {
		return err
	}
	if _, typeErr := s.PruneAndCoerce(t); typeErr != nil {
		return apierrors.NewInternalError(typeErr)
	}
	return nil
}

// fillDefaults applies the defaults of a custom kind's version.
func fillDefaults(v *resource.Version, t object.Tree) (object.Tree, error) {
	s, err := schemaOf(v)
	if err == nil {
		s.FillDefaults(t)
	}
	return t, err
}

func versionOf(d *resource.Definition, apiVersion string) *resource.Version {
	for _, v := range d.Versions {
		if v.APIVersion == apiVersion {
			return v
		}
	}
	return nil
}
