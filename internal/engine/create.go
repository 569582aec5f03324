package engine

import (
	"context"
	"errors"
	"maps"
	"strconv"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	// nameAttempts is how many names are tried for a generateName.
	nameAttempts = 8
	// longestBase and randomLength make generated names of at most 63 characters.
	longestBase, randomLength = 58, 5
)

var errTerminating = errors.New("create not allowed while custom resource definition is terminating")

// Create stores a new object.
func (e *Engine) Create(ctx context.Context, t Target, b Body, c Caller) (Object, error) {
	w, err := e.begin(ctx, t, c)
	if err != nil {
		return Object{}, err
	}
	tree, err := w.accept(b)
	if err != nil {
		return Object{}, err
	}
	if answer := w.def.Behavior.Answer; answer != nil {
		if tree, err = w.own(nil, tree); err != nil {
			return Object{}, err
		}
		out, err := answer(ctx, c.User, tree)
		if err != nil {
			return Object{}, err
		}
		return Object{Version: w.v, Packed: object.Pack(out, 0)}, nil
	}
	wipeSystemFields(object.EnsureMetadata(tree))
	if err := w.inNamespace(tree); err != nil {
		return Object{}, err
	}
	w.dedup(tree, false)
	return w.createRetrying(ctx, tree)
}

// createRetrying creates t, under other names where the name was generated and is taken.
func (w *writing) createRetrying(ctx context.Context, t object.Tree) (Object, error) {
	md := object.EnsureMetadata(t)
	given, hasGiven := md["managedFields"]
	base := object.String(md, "generateName")
	generate := base != "" && object.Name(t) == ""
	for attempt := 1; ; {
		if generate {
			md["name"] = base[:min(len(base), longestBase)] + utilrand.String(randomLength)
		}
		owned, err := w.own(nil, t)
		if err != nil {
			return Object{}, err
		}
		o, err := w.create(ctx, owned)
		lost, failed := guardFailed(err)
		switch {
		case err == nil:
			return o, nil
		case failed:
			if err := w.refresh(ctx, lost); err != nil {
				return Object{}, err
			}
		case generate && apierrors.IsAlreadyExists(err) && attempt < nameAttempts:
			w.quiet = true
			attempt++
		default:
			return Object{}, storageError(err)
		}
		md = object.EnsureMetadata(t)
		delete(md, "managedFields")
		if hasGiven {
			md["managedFields"] = given
		}
	}
}

// create makes one attempt to store t, which has its managedFields.
func (w *writing) create(ctx context.Context, t object.Tree) (Object, error) {
	snap := w.engine.Store.Head()
	guards, err := w.admitCreate(snap, t)
	if err != nil {
		return Object{}, err
	}
	md := object.EnsureMetadata(t)
	wipeSystemFields(md)
	md["creationTimestamp"] = timestamp(w.now)
	md["uid"] = uuid.NewString()
	w.form = t
	if t, err = w.prepareCreate(ctx, t); err != nil {
		return Object{}, err
	}
	if err := w.validateCreate(ctx, t); err != nil {
		return Object{}, err
	}
	sent, err := strconv.ParseUint(object.ResourceVersion(t), 10, 63)
	if err != nil {
		sent = 0
	}
	if sent != 0 && !w.upsert && !w.caller.DryRun {
		return Object{}, plain("resourceVersion should not be set on objects to be created")
	}
	if g := w.def.Behavior.Guards; g != nil {
		guards = append(guards, g(ctx, t)...)
	}
	name, key := object.Name(t), w.def.Key(object.Namespace(t), object.Name(t))
	p, err := w.stored(t)
	if err != nil {
		return Object{}, err
	}
	if w.caller.DryRun {
		if rec := snap.Get(key); rec != nil {
			return Object{}, w.exists(t, name, rec)
		}
		return w.unstored(p, int64(sent)) // as upstream, which shows what was sent
	}
	rec, err := w.commit(ctx, key, p, 0, guards)
	if c, ok := overtaken(err); ok {
		return Object{}, w.exists(t, name, c.Current)
	}
	if err != nil {
		return Object{}, err
	}
	return w.result(rec)
}

// exists is the 409 for a name that is taken by rec.
func (w *writing) exists(t object.Tree, name string, rec *storage.Record) error {
	gr := w.v.GroupResource()
	err := apierrors.NewAlreadyExists(gr, name)
	if object.String(object.Metadata(t), "generateName") != "" {
		err = apierrors.NewGenerateNameConflict(gr, name, 1)
	}
	if rec != nil && derive(rec).meta.DeletionTimestamp != "" {
		err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
	}
	return err
}

// admitCreate asks whether anything may be created here now, and returns what the answer
// relies on.
func (w *writing) admitCreate(snap *storage.Snapshot, t object.Tree) ([]storage.Guard, error) {
	gr, name := w.v.GroupResource(), object.Name(t)
	if name == "" {
		name = object.String(object.Metadata(t), "generateName")
	}
	if c := w.def.Custom; c != nil && c.Terminating {
		return nil, apierrors.NewForbidden(gr, name, errTerminating)
	}
	if !w.def.Namespaced {
		return nil, nil
	}
	namespaces := w.engine.Live.Load().Definition("", "namespaces")
	if namespaces == nil {
		return nil, nil
	}
	key := namespaces.Key("", w.target.Namespace)
	rec := snap.Get(key)
	var ns *object.Meta
	guard := storage.Guard{Key: key}
	if rec != nil {
		ns = derive(rec).meta
		guard.Revision = rec.Modified
	}
	if err := admission.CreateIn(w.target.Namespace, ns, gr, name); err != nil {
		return nil, err
	}
	return []storage.Guard{guard}, nil
}

// prepareCreate resets what clients may not set.
func (w *writing) prepareCreate(ctx context.Context, t object.Tree) (object.Tree, error) {
	if w.v.Status {
		delete(t, "status")
	}
	if w.def.Custom != nil || w.def.Behavior.Generation {
		object.SetGeneration(t, 1)
	}
	if w.def.Custom != nil {
		return t, nil
	}
	t, err := w.toStorage(t)
	if err != nil {
		return nil, err
	}
	if prepare := w.def.Behavior.PrepareCreate; prepare != nil {
		t = maps.Clone(t) // the next attempt starts from what the client sent
		if err := prepare(ctx, t); err != nil {
			return nil, err
		}
	}
	return t, nil
}
