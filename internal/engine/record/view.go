package record

import (
	"context"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Views reads the records of a store at any version of their kinds. New creates it.
type Views struct {
	Config

	cache   conversionCache
	mu      sync.Mutex
	running sync.WaitGroup // functions that Go has started
	ctx     context.Context
	cancel  context.CancelFunc
}

// Config holds the dependencies and settings of Views. Only Webhook and Generation may be nil.
type Config struct {
	Store   storage.Store
	Live    *catalog.Live
	Now     func() time.Time
	Webhook conversion.Webhook
	// Generation and RevalidateInterval are those of engine.Config.
	Generation         func(webhook string) uint64
	RevalidateInterval time.Duration
}

// New returns Views without cached conversions.
func New(c Config) *Views {
	s := &Views{Config: c}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Go runs f in a new goroutine, unless Close has been called.
func (s *Views) Go(f func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.running.Go(func() { f(s.ctx) })
	}
}

// Close stops the functions that Go has started, and waits until they have ended.
func (s *Views) Close() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.running.Wait()
}

// Converter returns the converter of objects.
func (s *Views) Converter() conversion.Converter { return conversion.Converter{Webhook: s.Webhook} }

// View reads records at one version. Most records are served as the stored bytes. The remaining records are
// decoded, defaulted, converted and encoded once, and the result is cached for all readers.
//
// A View compiles no schema before it reads an object, so a kind that has no objects costs nothing.
type View struct {
	views    *Views
	Version  *resource.Version
	Remote   bool // a webhook converts: one call for many objects is faster, and labels may change
	AsStored bool // Target.AsStored
	convert  bool // objects at the storage version need a conversion
}

// At returns the View at a version.
func (s *Views) At(v *resource.Version) View {
	return View{views: s, Version: v, convert: v.ConvertFrom != nil, Remote: conversion.UsesWebhook(v.Definition)}
}

// Of returns the View for the target of a request.
func (s *Views) Of(t verb.Target) View {
	r := s.At(t.Version)
	if r.AsStored = t.AsStored; r.AsStored {
		r.convert, r.Remote = false, false
	}
	return r
}

// Other returns the View at another version of the kind.
func (r View) Other(v *resource.Version) View { return r.views.At(v) }

// fingerprint identifies the rules for pruning and defaulting at v. It is 0 for built-in kinds, whose Go type does
// not change while the server runs.
func fingerprint(v *resource.Version) (uint64, error) {
	if v.Schema == nil {
		return 0, nil
	}
	s, err := SchemaOf(v)
	if err != nil {
		return 0, err
	}
	return s.Fingerprint(), nil
}

// SchemaOf returns the schema of a custom version.
func SchemaOf(v *resource.Version) (*crd.Compiled, error) {
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

// Pack encodes an object at its storage version. A read may change the stored object, for example by a default that the
// conversion has left out. In that case the object is marked as not canonical.
func Pack(t object.Tree, v *resource.Version) (object.Packed, error) {
	s, err := SchemaOf(v)
	if err != nil {
		return object.Packed{}, err
	}
	if !s.IsNormalized(t) {
		return object.Pack(t, fingerprintNotCanonical), nil
	}
	return object.Pack(t, s.Fingerprint()), nil
}

// MayFail reports whether reading an object at r's version may fail.
func (r View) MayFail() bool {
	return r.Version.Definition.Conversion() != resource.Conversion{}
}

// Read returns the object in rec at r's version.
func (r View) Read(ctx context.Context, rec *storage.Record) (Object, error) {
	if !r.servesAsStored(rec) {
		recs, err := r.converted(ctx, []*storage.Record{rec})
		if err != nil {
			return Object{}, err
		}
		rec = recs[0]
	}
	return Object{Version: r.Version, Revision: rec.Modified, Record: rec}, nil
}

// Preconvert converts the records with the kind's webhook. Selectors and the method read then use the converted
// records. For a kind without a webhook it returns recs unchanged. Elements of recs may be nil.
func (r View) Preconvert(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error) {
	if !r.Remote {
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
func (r View) converted(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error) {
	now := r.views.Now()
	key := conversionKeyAt(r.Version, r.views.epochOf(r.Version.Definition, now))
	return r.views.cache.get(ctx, key, now, recs, r.ConvertAll)
}

// servesAsStored reports whether the stored bytes of rec can be served at r's version. It caches a positive
// result in rec.
func (r View) servesAsStored(rec *storage.Record) bool {
	d := derive(rec)
	if d.servedAs.Load() == r.Version {
		return true
	}
	p := Packed(rec)
	if p.Fingerprint() == fingerprintUnknown && r.Version.Schema != nil && !r.AsStored {
		p = checkCanonical(rec, r.Version.Definition)
	}
	if !r.Unchanged(p) {
		return false
	}
	if !r.AsStored {
		d.servedAs.Store(r.Version)
	}
	return true
}

// checkCanonical computes the fingerprint of a custom object that was loaded from the store. If the object is
// canonical, so that pruning and defaulting do not change it, the fingerprint is that of the schema. Otherwise it
// is fingerprintNotCanonical.
func checkCanonical(rec *storage.Record, d *resource.Definition) object.Packed {
	p, found := Packed(rec), uint64(fingerprintNotCanonical)
	for _, v := range d.Versions {
		if !p.HasAPIVersion(v.APIVersion) {
			continue
		}
		s, err := SchemaOf(v)
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

// Unchanged reports whether p can be served at r's version with only its apiVersion changed. This requires that
// neither p's storage version nor r's version prunes or defaults anything.
func (r View) Unchanged(p object.Packed) bool {
	if r.convert || p.MustDecode() {
		return false
	}
	if r.AsStored {
		return true
	}
	want, err := fingerprint(r.Version)
	if err != nil || p.Fingerprint() != want {
		return false
	}
	if r.Version.Schema == nil || p.HasAPIVersion(r.Version.APIVersion) {
		return true
	}
	for _, v := range r.Version.Definition.Versions {
		if p.HasAPIVersion(v.APIVersion) {
			fp, err := fingerprint(v)
			return err == nil && fp == want && conversion.Trivial(v, r.Version)
		}
	}
	return false
}

// ConvertAll converts recs to r's version. It does not use the cache.
func (r View) ConvertAll(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error) {
	fp, err := fingerprint(r.Version)
	if err != nil {
		return nil, err
	}
	trees, err := r.trees(ctx, recs)
	if err != nil {
		return nil, err
	}
	out := make([]*storage.Record, len(recs))
	for i, rec := range recs {
		out[i] = FromPacked(object.Pack(trees[i], fp))
		out[i].Key, out[i].Created, out[i].Modified, out[i].Expires = rec.Key, rec.Created, rec.Modified, rec.Expires
	}
	return out, nil
}

// Tree decodes p at r's version and sets resourceVersion to revision. If revision is 0, it sets no resourceVersion.
func (r View) Tree(ctx context.Context, p object.Packed, revision int64) (object.Tree, error) {
	t, err := r.decode(p, revision)
	if err != nil || r.AsStored || object.String(t, "apiVersion") == r.Version.APIVersion {
		return t, err
	}
	objects := []object.Tree{t}
	err = r.views.Converter().Convert(ctx, objects, r.Version)
	return objects[0], verb.Status(err)
}

// trees decodes the objects in recs at r's version, without a resourceVersion. If the kind has a webhook, it converts
// the objects in one call.
func (r View) trees(ctx context.Context, recs []*storage.Record) (out []object.Tree, err error) {
	out = make([]object.Tree, len(recs))
	for i, rec := range recs {
		if out[i], err = r.decode(Packed(rec), 0); err != nil {
			return nil, err
		}
	}
	if !r.AsStored {
		err = verb.Status(r.views.Converter().Convert(ctx, out, r.Version))
	}
	return out, err
}

// TreeFor is Tree for a write that may convert the object again. memo receives the known conversions.
func (r View) TreeFor(ctx context.Context, rec *storage.Record, memo *conversion.Memo) (object.Tree, error) {
	if !r.Remote {
		return r.Tree(ctx, Packed(rec), rec.Modified)
	}
	seen, err := r.Read(ctx, rec) // usually cached by an earlier read
	if err != nil {
		return nil, err
	}
	live, err := seen.Tree()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	stored, err := r.decode(Packed(rec), 0)
	memo.Add(live, stored)
	return live, err
}

// Derived returns the value of storage.Write.Derived for an object. served means that the object will be read at the
// view's version.
func (r View) Derived(p object.Packed, served bool) any {
	d := newDerived(p)
	if served && !r.AsStored && r.Unchanged(p) {
		d.servedAs.Store(r.Version)
	}
	return d
}

// decode decodes p at the version at which it is stored, and applies that version's defaults. The defaults of r's
// version apply only to request bodies and to the results of a webhook.
func (r View) decode(p object.Packed, revision int64) (object.Tree, error) {
	t, err := p.Tree(revision)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	from := r.Version.Definition.Version(object.String(t, "apiVersion"))
	if from == nil || from.Schema == nil || r.Unchanged(p) {
		return t, nil
	}
	s, err := SchemaOf(from)
	if err == nil {
		s.NormalizeStored(t)
	}
	return t, err
}
