package write

import (
	"fmt"

	"math"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/scales"
	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// updateScale handles a PUT to /scale.
func (w *write) updateScale(b verb.Body) (record.Object, error) {
	s := w.bodyWrite(scales.Version)
	scale, err := s.decodeBody(b)
	if err == nil {
		err = s.locateBody(scale)
	}
	if err != nil {
		return record.Object{}, err
	}
	w.wantUID = string(object.UID(scale))
	return w.changeScale(func(before object.Tree) (object.Tree, error) {
		w.Warn(s.Warnings...)
		return w.withUpdatedScale(before, scale)
	})
}

// bodyWrite returns a write that processes the body of a request to a subresource. v is the version of the body's
// own kind, such as Scale.
func (w *write) bodyWrite(v *resource.Version) *write {
	s := &write{writer: w.writer, rules: strategy.RulesOf(v)}
	s.Ctx, s.Target, s.Caller, s.Version, s.Def = w.Ctx, w.Target, w.Caller, v, v.Definition
	return s
}

// locateBody compares the name and namespace in a subresource's body with those of the request.
func (w *write) locateBody(body object.Tree) error {
	w.Desired = body
	return w.locate()
}

// patchScale handles a PATCH of /scale.
func (w *write) patchScale(p verb.Patch) (record.Object, error) {
	s := w.bodyWrite(scales.Version)
	if p.Type == types.ApplyYAMLPatchType {
		applied, repeated, err := s.decodeApplied(p.Data)
		if err != nil {
			return record.Object{}, err
		}
		return w.changeScale(func(before object.Tree) (object.Tree, error) {
			s.Warnings = nil
			scale, err := w.applyScale(s, before, applied, p.Force)
			if err == nil {
				err = s.reportRepeated(repeated)
			}
			w.Warn(s.Warnings...)
			return scale, err
		})
	}
	return w.changeScale(func(before object.Tree) (object.Tree, error) {
		s.Warnings = nil
		out, err := s.patch(before, p)
		if err == nil {
			err = s.locateBody(out)
		}
		w.Warn(s.Warnings...)
		if err != nil {
			return nil, err
		}
		if spec, _ := out["spec"].(object.Tree); object.Int64(spec, "replicas") == unsetReplicas {
			return nil, w.missingReplicas()
		}
		return w.withUpdatedScale(before, out)
	})
}

// unsetReplicas is the number of replicas in the Scale of an object that specifies none. No client sends this
// value. The caller's patch must replace it.
const unsetReplicas = math.MinInt32

func (w *write) missingReplicas() error {
	return apierrors.NewBadRequest(fmt.Sprintf(
		"the spec replicas field %q cannot be empty", scales.DotPath(w.Version.Scale.SpecReplicas)))
}

// changeScale writes the object with a changed Scale and returns the new Scale. The function f receives the Scale
// of the live object and returns the desired object.
func (w *write) changeScale(f func(before object.Tree) (object.Tree, error)) (record.Object, error) {
	w.change = func(w *write) (object.Tree, error) {
		if err := w.load(); err != nil {
			return nil, err
		}
		before, found, err := scales.Of(w.Version.Scale, w.Live)
		if err != nil {
			return nil, verb.Unknown(err)
		}
		if spec, _ := before["spec"].(object.Tree); !found {
			spec["replicas"] = int64(unsetReplicas)
		}
		w.managed, w.scale.live = true, before
		return f(before)
	}
	if err := w.run(); err != nil {
		return record.Object{}, err
	}
	parent, err := w.result.Tree()
	if err != nil {
		return record.Object{}, apierrors.NewInternalError(err)
	}
	scale, _, err := scales.Of(w.Version.Scale, parent)
	if err != nil {
		return record.Object{}, apierrors.NewBadRequest(err.Error())
	}
	return record.NewObject(scales.Version, w.result.Revision, object.Pack(scale, 0)), nil
}

// withUpdatedScale returns the live object with the replicas and resourceVersion of scale. The parameter before is
// the Scale of the live object. The caller becomes the manager of the fields in which scale differs from it.
func (w *write) withUpdatedScale(before, scale object.Tree) (object.Tree, error) {
	entries, _ := object.Metadata(w.Live)["managedFields"].([]any)
	fields := scales.ManagedFields()
	w.setScaleOwners(before, entries)
	scale, err := fields.Update(before, scale, w.Caller.FieldManager, w.now)
	if err != nil {
		return nil, verb.Unknown(err)
	}
	return w.withScale(scale)
}

// setScaleOwners computes the managedFields of a Scale from the managedFields of its object.
func (w *write) setScaleOwners(scale object.Tree, entries []any) {
	if owners := scales.Owners(w.Def, entries); len(owners) > 0 {
		object.EnsureMetadata(scale)["managedFields"] = owners
	}
}

// asScale returns the Scale of the object t.
func (w *write) asScale(t object.Tree) (object.Tree, error) {
	t, err := w.At(t, w.Version)
	if err != nil {
		return nil, err
	}
	scale, _, err := scales.Of(w.Version.Scale, t)
	return scale, err
}

// withScale returns the live object with the replicas, resourceVersion and managedFields of scale.
func (w *write) withScale(scale object.Tree) (object.Tree, error) {
	w.scale.desired = scale
	spec, _ := scale["spec"].(object.Tree)
	if err := w.checkScale(scale, object.Int64(spec, "replicas")); err != nil {
		return nil, err
	}
	t := object.ShallowCopy(w.Live)
	if err := scales.Set(t, object.Int64(spec, "replicas"), w.Version.Scale.SpecReplicas); err != nil {
		return nil, verb.Unknown(err)
	}
	md := object.EnsureMetadata(t)
	if rv := object.ResourceVersion(scale); rv != "" {
		object.SetResourceVersion(t, rv)
	}
	before, _ := md["managedFields"].([]any)
	after, _ := object.Metadata(scale)["managedFields"].([]any)
	if entries := scales.ParentOwners(w.Version, before, after); len(entries) > 0 {
		md["managedFields"] = entries
	} else {
		delete(md, "managedFields")
	}
	return t, nil
}

// checkScale validates a Scale of a built-in kind. For a custom kind, the resulting object is validated later
// instead.
func (w *write) checkScale(scale object.Tree, replicas int64) error {
	if w.Def.Strategy == nil {
		return nil
	}
	if errs := validation.ValidateNonnegativeField(replicas, field.NewPath("spec", "replicas")); len(errs) > 0 {
		return apierrors.NewInvalid(scales.Version.GroupVersionKind().GroupKind(), w.Target.Name, errs)
	}
	if wants, has := object.UID(scale), object.UID(w.Live); wants != "" && wants != has {
		gr := w.Version.GroupResource()
		gr.Resource += "/scale"
		//lint:ignore ST1005 upstream's words
		return apierrors.NewConflict(gr, w.Target.Name, fmt.Errorf(
			"Precondition failed: UID in precondition: %v, UID in object meta: %v", wants, has))
	}
	return nil
}

// applyScale merges an applied Scale into the Scale of the live object, which is the parameter before. It returns
// the desired object.
func (w *write) applyScale(s *write, before, applied object.Tree, force bool) (object.Tree, error) {
	entries, _ := object.Metadata(w.Live)["managedFields"].([]any)
	w.setScaleOwners(before, entries)
	fields := scales.ManagedFields()
	scale, err := fields.Apply(before, applied, w.Caller.FieldManager, force, w.now)
	if err != nil {
		return nil, verb.Unknown(err)
	}
	if err := s.locateBody(scale); err != nil {
		return nil, err
	}
	if spec, _ := scale["spec"].(object.Tree); object.Int64(spec, "replicas") == unsetReplicas {
		return nil, w.missingReplicas()
	}
	return w.withScale(scale)
}
