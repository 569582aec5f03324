package engine

import (
	"context"
	"errors"
	"time"

	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// writing is one write request under way, against one state of the catalog.
type writing struct {
	ctx    context.Context // of the request: reading and storing may take a conversion
	engine *Engine
	target Target
	caller Caller
	v      *resource.Version
	def    *resource.Definition
	reader reader
	fields merge.Fields
	memo   memo
	form   object.Tree // what is written, at v, before it is made what is stored
	now    time.Time
	quiet  bool          // a retry: the warnings have been given
	turn   chan struct{} // the queue this write is at the head of, if any
	upsert bool          // an update or apply that creates: a resourceVersion does no harm
}

// begin starts a write.
func (e *Engine) begin(ctx context.Context, t Target, c Caller) (*writing, error) {
	w := &writing{ctx: ctx, engine: e, target: t, caller: c, now: e.clock()}
	if err := e.subresource(t); err != nil {
		return nil, err
	}
	w.resolve(t.Version)
	return w, nil
}

func (e *Engine) clock() time.Time {
	if e.Now != nil {
		return e.Now()
	}
	return time.Now()
}

// resolve points w at one version of a kind.
func (w *writing) resolve(v *resource.Version) {
	w.v, w.def = v, v.Definition
	w.fields = merge.Fields{
		APIVersion:  v.APIVersion,
		Kind:        v.Definition.Names.Kind,
		Subresource: w.target.Subresource,
		Parseable:   w.parseable,
		Convert:     w.convertTo,
		Reset:       w.reset(),
		Whole:       v.Definition.Behavior.OwnedWhole,
	}
	t := w.target
	t.Version = v
	w.reader = w.engine.readerOf(t)
}

// refresh looks the kind up again after the CRD or the namespace has changed under a write.
func (w *writing) refresh(ctx context.Context, lost *storage.ConflictError) error {
	w.quiet = true
	if err := w.engine.catchUp(ctx, lost); err != nil || w.def.Custom == nil {
		return err
	}
	catalog, err := w.engine.Live.Wait(ctx, w.engine.Store.Head().Revision())
	if err != nil {
		return storageError(err)
	}
	v := catalog.Find(w.v.GroupVersion.Group, w.v.GroupVersion.Version, w.def.Names.Plural)
	if v == nil || v.Definition.Custom == nil {
		return notServed()
	}
	if err := w.engine.subresource(Target{Version: v, Subresource: w.target.Subresource}); err != nil {
		return err
	}
	w.resolve(v)
	return nil
}

func (w *writing) warn(texts ...string) {
	if w.caller.Warn == nil || w.quiet {
		return
	}
	for _, text := range texts {
		w.caller.Warn(text)
	}
}

func (w *writing) parseable(apiVersion string) (typed.ParseableType, bool) {
	v := versionOf(w.def, apiVersion)
	if v == nil || v.Parseable == nil {
		return typed.ParseableType{}, false
	}
	p, err := v.Parseable()
	return p, err == nil
}

func (w *writing) convertTo(t object.Tree, apiVersion string) (object.Tree, error) {
	to := versionOf(w.def, apiVersion)
	if to == nil {
		return nil, errors.New("engine: version " + apiVersion + " is not known")
	}
	from := versionOf(w.def, object.String(t, "apiVersion"))
	if from == to {
		return t, nil
	}
	if conversion.Remote(w.def) {
		return w.convertRemote(t, to)
	}
	copied := make(object.Tree, len(t))
	for k, v := range t {
		copied[k] = v
	}
	out, err := conversion.Convert(w.ctx, copied, from, to)
	return out, asInternal(err)
}

// reset lists the fields that a write through this endpoint never owns.
func (w *writing) reset() []string {
	sub := w.target.Subresource
	switch {
	case w.def.Custom == nil && sub == "":
		return w.def.Behavior.ResetOnWrite
	case w.def.Custom == nil:
		return w.def.Behavior.ResetOnStatus
	case sub == "status":
		return []string{"metadata", "spec"}
	case sub == "" && w.v.Status:
		return []string{"status"}
	}
	return nil
}

// own records in managedFields what the caller changed.
func (w *writing) own(live, t object.Tree) (object.Tree, error) {
	w.emptyFor(live)
	out, err := w.fields.Update(live, t, w.caller.FieldManager, w.now)
	return out, asPlain(err)
}

// emptyFor gives a create of a built-in kind, or the first apply to one of which nobody
// knows the owners, the object it starts from.
func (w *writing) emptyFor(live object.Tree) {
	if object.Metadata(live)["managedFields"] != nil || w.v.Type == nil || w.fields.Empty != nil {
		return
	}
	t, err := resource.ToTree(w.v.Type.New())
	if err == nil {
		t["apiVersion"], t["kind"] = w.v.APIVersion, w.def.Names.Kind
		w.fields.Empty = t
	}
}

// key is the storage key of the target.
func (w *writing) key() string { return w.def.Key(w.target.Namespace, w.target.Name) }

// stored gives an object the form in which it is stored. t is at the request's version
// for a custom kind, and at the storage version for a built-in one. What reading would change, such as
// a default that conversion or the other endpoint has left out, is stored as it is and marked.
func (w *writing) stored(t object.Tree) (object.Packed, error) {
	delete(object.Metadata(t), "selfLink") // nobody has set it since release 1.20
	to := w.def.Storage
	if w.target.AsStored {
		to = w.v
	}
	if w.def.Custom == nil {
		t["apiVersion"] = to.APIVersion
		return object.Pack(t, 0), nil
	}
	s, err := schemaOf(to)
	if err != nil {
		return nil, err
	}
	switch {
	case w.v == to:
	case conversion.Remote(w.def):
		t, err = w.convertRemote(t, to)
	default:
		// the copy, since t may be needed again as it is, if the storage version changes meanwhile
		t, err = w.engine.convert(w.ctx, object.Copy(t), w.v, to)
	}
	if err != nil {
		return nil, err
	}
	if !s.Settled(t) {
		return object.Pack(t, unsettled), nil
	}
	return object.Pack(t, s.Fingerprint()), nil
}

// result is what the caller of a write gets back of rec.
func (w *writing) result(rec *storage.Record) (Object, error) { return w.reader.at(w.ctx, rec) }

// unstored is what the caller of a dry run gets back, or of an update that deleted.
func (w *writing) unstored(p object.Packed, revision int64) (Object, error) {
	if w.reader.passes(p) {
		return Object{Version: w.v, Revision: revision, Packed: p}, nil
	}
	viewed, err := w.reader.make(w.ctx, []*storage.Record{{Value: p}})
	if err != nil {
		return Object{}, err
	}
	return Object{Version: w.v, Revision: revision, Packed: viewed[0].Value}, nil
}

// commit writes one object, under the guards of its kind.
func (w *writing) commit(ctx context.Context, key string, p object.Packed, expected int64, guards []storage.Guard) (*storage.Record, error) {
	if c := w.def.Custom; c != nil {
		guards = append(guards, storage.Guard{Key: c.Key, Revision: c.Revision})
	}
	known := newDerived(p)
	if w.reader.passes(p) {
		known.passes.Store(w.v)
	}
	events, err := w.engine.Store.Commit(ctx, []storage.Write{{
		Key:      key,
		Value:    p,
		Expected: expected,
		TTL:      w.ttl(),
		Derived:  known,
	}}, guards...)
	if err != nil {
		return nil, err
	}
	w.settle(ctx)
	return events[0].Record, nil
}

// settle waits, after a write of a CRD, until the catalog knows of it: the next request shall go by it.
func (w *writing) settle(ctx context.Context) {
	if w.def.Prefix == resource.CRDPrefix {
		_, _ = w.engine.Live.Current(ctx) // stored it is, whether or not the caller waits
	}
}

func (w *writing) ttl() time.Duration { return time.Duration(w.def.Behavior.TTL) * time.Second }

// guardFailed reports that the state a write relies on has changed.
func guardFailed(err error) (*storage.ConflictError, bool) {
	var c *storage.ConflictError
	return c, errors.As(err, &c) && c.Guard
}

// overtaken reports that another write to the same object came first.
func overtaken(err error) (*storage.ConflictError, bool) {
	var c *storage.ConflictError
	return c, errors.As(err, &c) && !c.Guard
}

// catchUp makes sure that the next try sees what it lost against.
func (e *Engine) catchUp(ctx context.Context, c *storage.ConflictError) error {
	if c.Current != nil {
		if _, err := e.Store.Wait(ctx, c.Current.Modified); err != nil {
			return storageError(err)
		}
	}
	if err := ctx.Err(); err != nil {
		return storageError(err)
	}
	return nil
}
