package engine

import (
	"context"
	"errors"
	"slices"
	"strconv"

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
	engine   *Engine
	version  *resource.Version
	convert  bool // objects of the storage version do not pass
	remote   bool // a webhook converts: better many at a time, and labels may change
	asStored bool // Target.AsStored
}

func (e *Engine) readerAt(v *resource.Version) reader {
	return reader{engine: e, version: v, convert: v.ConvertFrom != nil, remote: conversion.UsesWebhook(v.Definition)}
}

// readerOf is the reader for what a request addresses.
func (e *Engine) readerOf(t Target) reader {
	r := e.readerAt(t.Version)
	if r.asStored = t.AsStored; r.asStored {
		r.convert, r.remote = false, false
	}
	return r
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

// Fingerprints of custom objects that are not those of a schema.
const (
	fingerprintUnknown      = 0 // nobody has looked yet: see settle
	fingerprintNotCanonical = 1 // it reads otherwise than it is stored
)

// mayFail reports that an object may be there which cannot be read at r's version.
func (r reader) mayFail() bool {
	c := r.version.Definition.Custom
	return r.remote || c != nil && c.Conversion.Declared != ""
}

// read returns the object in rec.
func (r reader) read(ctx context.Context, rec *storage.Record) (Object, error) {
	if !r.servesAsStored(rec) {
		viewed, err := r.converted(ctx, []*storage.Record{rec})
		if err != nil {
			return Object{}, err
		}
		rec = viewed[0]
	}
	return Object{Version: r.version, Revision: rec.Modified, Record: rec}, nil
}

// preconvert makes of records what they are at r's version, where a webhook has a say in that: all that follows
// (selectors, at) then goes by the views. Where there is no webhook, recs come back as they are.
func (r reader) preconvert(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error) {
	if !r.remote {
		return recs, nil
	}
	var missing []*storage.Record
	var places []int
	for i, rec := range recs {
		if rec != nil && !r.servesAsStored(rec) {
			missing, places = append(missing, rec), append(places, i)
		}
	}
	if len(missing) == 0 {
		return recs, nil
	}
	viewed, err := r.converted(ctx, missing)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(recs)
	for i, place := range places {
		out[place] = viewed[i]
	}
	return out, nil
}

// converted returns what recs are at r's version, made now or kept from before.
func (r reader) converted(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error) {
	now := r.engine.clock()
	key := conversionKeyAt(r.version, r.engine.epochOf(r.version.Definition, now))
	return r.engine.conversions.get(ctx, key, now, recs, r.convertAll)
}

// servesAsStored reports that the object in rec looks at r's version as it is.
func (r reader) servesAsStored(rec *storage.Record) bool {
	known := derive(rec)
	if known.servedAs.Load() == r.version {
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
		known.servedAs.Store(r.version)
	}
	return true
}

// checkCanonical finds out whether reading a custom object, of which that is not known since it was loaded, adds or takes away
// anything.
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
	return p.Header.Of(rec.Value, found)
}

// unchanged reports that p looks at r's version as it is, but for its apiVersion: the version that it was
// stored at, and the one that it is read at, both leave it alone.
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

// convertAll makes the views of recs.
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
		view := recordOf(object.Pack(trees[i], fp))
		view.Key, view.Created, view.Modified, view.Expires = rec.Key, rec.Created, rec.Modified, rec.Expires
		out[i] = view
	}
	return out, nil
}

// tree decodes p at r's version, with resourceVersion set to revision unless that is 0.
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

// trees decodes objects at r's version, none with a resourceVersion.
func (r reader) trees(ctx context.Context, objects []object.Packed) ([]object.Tree, error) {
	out := make([]object.Tree, len(objects))
	var foreign []int
	for i, p := range objects {
		var from *resource.Version
		var err error
		if !r.remote {
			out[i], err = r.tree(ctx, p, 0)
		} else if out[i], from, err = r.decode(p, 0); from != r.version {
			foreign = append(foreign, i)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(foreign) == 0 {
		return out, nil
	}
	return out, r.engine.convertByWebhook(ctx, out, foreign, r.version)
}

// decode decodes p at the version that it is stored at, which it returns, nil where it is no longer known. It fills in
// that version's defaults. Those of the version it is read at are for requests, and for what comes from a webhook.
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

// withoutResourceVersion is t without a resourceVersion, which webhooks do not see; t stays as it is.
func withoutResourceVersion(t object.Tree) object.Tree {
	if object.ResourceVersion(t) == "" {
		return t
	}
	t = shallowCopy(t)
	delete(object.Metadata(t), "resourceVersion")
	return t
}

// convertByWebhook has a webhook convert some of the objects.
func (e *Engine) convertByWebhook(ctx context.Context, objects []object.Tree, which []int, to *resource.Version) error {
	if e.Webhook == nil {
		return apierrors.NewInternalError(errors.New("this server calls no conversion webhooks"))
	}
	in := make([]object.Tree, len(which))
	for i, at := range which {
		in[i] = withoutResourceVersion(objects[at])
	}
	out, err := e.Webhook(ctx, to, in)
	if err != nil {
		return storageError(err)
	}
	for i, at := range which {
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

// convert translates an object of a kind that has no webhook, and prunes what comes out where the kind is custom. from is
// nil where its version is no longer known.
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

// asInternalError answers what has no Status of its own with a 500.
func asInternalError(err error) error {
	var status *apierrors.StatusError
	if err == nil || errors.As(err, &status) {
		return err
	}
	return apierrors.NewInternalError(err)
}

// pruneConverted prunes what a conversion to v has made.
func pruneConverted(v *resource.Version, t object.Tree) error {
	s, err := schemaOf(v)
	if err != nil {
		return err
	}
	if _, wrong := s.PruneAndCoerce(t); wrong != nil {
		return apierrors.NewInternalError(wrong)
	}
	return nil
}

// fillDefaults fills in the defaults of a custom kind's version.
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
