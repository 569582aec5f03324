package engine

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// ScaleVersion is the version autoscaling/v1 of Scale. The bodies and the results of all requests to /scale are of
// this version.
var ScaleVersion = newScaleVersion(false)

// BuiltinScale is ScaleVersion with the Table columns for built-in kinds.
var BuiltinScale = newScaleVersion(true)

func newScaleVersion(builtin bool) *resource.Version {
	v := &resource.Version{
		Definition: &resource.Definition{
			Group:      "autoscaling",
			Names:      resource.Names{Plural: "scales", Singular: "scale", Kind: "Scale"},
			Namespaced: true,
		},
		GroupVersion: autoscalingv1.SchemeGroupVersion,
		APIVersion:   autoscalingv1.SchemeGroupVersion.String(),
		Served:       true,
		Columns:      resource.ScaleColumns(builtin),
		Type:         &resource.GoType{New: func() runtime.Object { return new(autoscalingv1.Scale) }},
	}
	v.Parseable = sync.OnceValues(v.Type.Parseable)
	v.Definition.Versions = []*resource.Version{v}
	v.Definition.Storage = v
	return v
}

// readScale handles a GET of /scale.
func (e *Engine) readScale(ctx context.Context, t Target, rec *storage.Record) (Object, error) {
	parent, err := e.readerAt(t.Version).tree(ctx, packed(rec), rec.Modified)
	if err != nil {
		return Object{}, err
	}
	scale, found, err := scaleOf(t.Version.Scale, parent)
	if err != nil {
		return Object{}, unknownError(err.Error())
	}
	if !found {
		return Object{}, apierrors.NewInternalError(fmt.Errorf(
			"the spec replicas field %q does not exist", dotPath(t.Version.Scale.SpecReplicas)))
	}
	return ObjectOf(ScaleVersion, rec.Modified, object.Pack(scale, 0)), nil
}

func dotPath(path []string) string { return "." + strings.Join(path, ".") }

// scaleOf returns the Scale of the object parent. found is false if the object's spec has no replicas.
func scaleOf(s *resource.Scale, parent object.Tree) (scale object.Tree, found bool, err error) {
	replicas, found, err := int32At(parent, s.SpecReplicas)
	if err != nil {
		return nil, false, err
	}
	current, _, err := int32At(parent, s.StatusReplicas)
	if err != nil {
		return nil, false, err
	}
	var selector string
	if len(s.LabelSelector) > 0 {
		if selector, err = selectorOf(s, parent); err != nil {
			return nil, false, err
		}
	}
	md := object.Tree{}
	for _, key := range []string{"name", "namespace", "uid", "resourceVersion", "creationTimestamp"} {
		object.CopyField(md, object.Metadata(parent), key)
	}
	spec, status := object.Tree{}, object.Tree{"replicas": current}
	if replicas != 0 {
		spec["replicas"] = replicas
	}
	if selector != "" {
		status["selector"] = selector
	}
	return object.Tree{
		"apiVersion": ScaleVersion.APIVersion, "kind": "Scale",
		"metadata": md, "spec": spec, "status": status,
	}, found, nil
}

func selectorOf(s *resource.Scale, parent object.Tree) (string, error) {
	if s.Selector == nil {
		text, _, err := unstructured.NestedString(parent, s.LabelSelector...)
		return text, err
	}
	v, _, err := unstructured.NestedFieldNoCopy(parent, s.LabelSelector...)
	if err != nil {
		return "", err
	}
	return s.Selector(v)
}

func int32At(t object.Tree, path []string) (int64, bool, error) {
	n, found, err := unstructured.NestedInt64(t, path...)
	if err == nil && (n > math.MaxInt32 || n < math.MinInt32) {
		err = fmt.Errorf("%s: %d is not a 32-bit integer", dotPath(path), n)
	}
	return n, found, err
}

// updateScale handles a PUT to /scale.
func (w *write) updateScale(b Body) (Object, error) {
	s := w.bodyWrite(ScaleVersion)
	scale, err := s.decodeBody(b)
	if err == nil {
		err = s.locateBody(scale)
	}
	if err != nil {
		return Object{}, err
	}
	w.wantUID = string(object.UID(scale))
	return w.changeScale(func(before object.Tree) (object.Tree, error) {
		w.warn(s.pendingWarnings...)
		return w.withUpdatedScale(before, scale)
	})
}

// bodyWrite returns a write that processes the body of a request to a subresource. v is the version of the body's
// own kind, such as Scale.
func (w *write) bodyWrite(v *resource.Version) *write {
	return &write{
		ctx: w.ctx, engine: w.engine, target: w.target, caller: w.caller,
		v: v, def: v.Definition, rules: rulesOf(v),
	}
}

// locateBody compares the name and namespace in a subresource's body with those of the request.
func (w *write) locateBody(body object.Tree) error {
	w.desired = body
	return w.locate()
}

// patchScale handles a PATCH of /scale.
func (w *write) patchScale(p Patch) (Object, error) {
	s := w.bodyWrite(ScaleVersion)
	if p.Type == types.ApplyYAMLPatchType {
		applied, repeated, err := s.decodeApplied(p.Data)
		if err != nil {
			return Object{}, err
		}
		return w.changeScale(func(before object.Tree) (object.Tree, error) {
			s.pendingWarnings = nil
			scale, err := w.applyScale(s, before, applied, p.Force)
			if err == nil {
				err = s.reportRepeated(repeated)
			}
			w.warn(s.pendingWarnings...)
			return scale, err
		})
	}
	return w.changeScale(func(before object.Tree) (object.Tree, error) {
		s.pendingWarnings = nil
		out, err := s.patch(before, p)
		if err == nil {
			err = s.locateBody(out)
		}
		w.warn(s.pendingWarnings...)
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
		"the spec replicas field %q cannot be empty", dotPath(w.v.Scale.SpecReplicas)))
}

// changeScale writes the object with a changed Scale and returns the new Scale. The function f receives the Scale
// of the live object and returns the desired object.
func (w *write) changeScale(f func(before object.Tree) (object.Tree, error)) (Object, error) {
	w.change = func(w *write) (object.Tree, error) {
		if err := w.load(); err != nil {
			return nil, err
		}
		before, found, err := scaleOf(w.v.Scale, w.live)
		if err != nil {
			return nil, unknownError(err.Error())
		}
		if spec, _ := before["spec"].(object.Tree); !found {
			spec["replicas"] = int64(unsetReplicas)
		}
		w.managed, w.scale.live = true, before
		return f(before)
	}
	if err := w.run(); err != nil {
		return Object{}, err
	}
	parent, err := w.result.Tree()
	if err != nil {
		return Object{}, apierrors.NewInternalError(err)
	}
	scale, _, err := scaleOf(w.v.Scale, parent)
	if err != nil {
		return Object{}, apierrors.NewBadRequest(err.Error())
	}
	return ObjectOf(ScaleVersion, w.result.Revision, object.Pack(scale, 0)), nil
}

// withUpdatedScale returns the live object with the replicas and resourceVersion of scale. The parameter before is
// the Scale of the live object. The caller becomes the manager of the fields in which scale differs from it.
func (w *write) withUpdatedScale(before, scale object.Tree) (object.Tree, error) {
	entries, _ := object.Metadata(w.live)["managedFields"].([]any)
	fields := scaleManagedFields()
	w.setScaleOwners(before, entries)
	scale, err := fields.Update(before, scale, w.caller.FieldManager, w.now)
	if err != nil {
		return nil, asUnknownError(err)
	}
	return w.withScale(scale)
}

// setScaleOwners computes the managedFields of a Scale from the managedFields of its object.
func (w *write) setScaleOwners(scale object.Tree, entries []any) {
	if owners := w.scaleOwners(entries); len(owners) > 0 {
		object.EnsureMetadata(scale)["managedFields"] = owners
	}
}

// asScale returns the Scale of the object t.
func (w *write) asScale(t object.Tree) (object.Tree, error) {
	t, err := w.at(t, w.v)
	if err != nil {
		return nil, err
	}
	scale, _, err := scaleOf(w.v.Scale, t)
	return scale, err
}

// withScale returns the live object with the replicas, resourceVersion and managedFields of scale.
func (w *write) withScale(scale object.Tree) (object.Tree, error) {
	w.scale.desired = scale
	spec, _ := scale["spec"].(object.Tree)
	if err := w.checkScale(scale, object.Int64(spec, "replicas")); err != nil {
		return nil, err
	}
	t := object.ShallowCopy(w.live)
	if err := setCopyOnWrite(t, object.Int64(spec, "replicas"), w.v.Scale.SpecReplicas); err != nil {
		return nil, unknownError(err.Error())
	}
	md := object.EnsureMetadata(t)
	if rv := object.ResourceVersion(scale); rv != "" {
		object.SetResourceVersion(t, rv)
	}
	before, _ := md["managedFields"].([]any)
	after, _ := object.Metadata(scale)["managedFields"].([]any)
	if entries := w.parentOwners(before, after); len(entries) > 0 {
		md["managedFields"] = entries
	} else {
		delete(md, "managedFields")
	}
	return t, nil
}

// checkScale validates a Scale of a built-in kind. For a custom kind, the resulting object is validated later
// instead.
func (w *write) checkScale(scale object.Tree, replicas int64) error {
	if w.def.Strategy == nil {
		return nil
	}
	if errs := validation.ValidateNonnegativeField(replicas, field.NewPath("spec", "replicas")); len(errs) > 0 {
		return apierrors.NewInvalid(ScaleVersion.GroupVersionKind().GroupKind(), w.target.Name, errs)
	}
	if wants, has := object.UID(scale), object.UID(w.live); wants != "" && wants != has {
		gr := w.v.GroupResource()
		gr.Resource += "/scale"
		//lint:ignore ST1005 upstream's words
		return apierrors.NewConflict(gr, w.target.Name, fmt.Errorf(
			"Precondition failed: UID in precondition: %v, UID in object meta: %v", wants, has))
	}
	return nil
}

// applyScale merges an applied Scale into the Scale of the live object, which is the parameter before. It returns
// the desired object.
func (w *write) applyScale(s *write, before, applied object.Tree, force bool) (object.Tree, error) {
	entries, _ := object.Metadata(w.live)["managedFields"].([]any)
	w.setScaleOwners(before, entries)
	fields := scaleManagedFields()
	scale, err := fields.Apply(before, applied, w.caller.FieldManager, force, w.now)
	if err != nil {
		return nil, asUnknownError(err)
	}
	if err := s.locateBody(scale); err != nil {
		return nil, err
	}
	if spec, _ := scale["spec"].(object.Tree); object.Int64(spec, "replicas") == unsetReplicas {
		return nil, w.missingReplicas()
	}
	return w.withScale(scale)
}

// setCopyOnWrite sets the value at a path of t. It modifies t, but copies the objects on the path below t.
func setCopyOnWrite(t object.Tree, value any, path []string) error {
	for i, name := range path[:len(path)-1] {
		next, ok := t[name].(object.Tree)
		if t[name] != nil && !ok {
			return fmt.Errorf("value cannot be set because %s is not an object", dotPath(path[:i+1]))
		}
		copied := make(object.Tree, len(next)+1)
		for k, v := range next {
			copied[k] = v
		}
		t[name] = copied
		t = copied
	}
	t[path[len(path)-1]] = value
	return nil
}

// validateScale validates the fields that /scale reads.
func validateScale(s *resource.Scale, t object.Tree, spec bool) (errs field.ErrorList) {
	if s == nil {
		return nil
	}
	if spec {
		errs = append(errs, validateReplicas(t, s.SpecReplicas)...)
	}
	errs = append(errs, validateReplicas(t, s.StatusReplicas)...)
	if len(s.LabelSelector) > 0 {
		if text, _, err := unstructured.NestedString(t, s.LabelSelector...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(dotPath(s.LabelSelector)), text, err.Error()))
		}
	}
	return errs
}

func validateReplicas(t object.Tree, path []string) field.ErrorList {
	n, _, err := unstructured.NestedInt64(t, path...)
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
	case n < 0:
		problem = "should be a non-negative integer"
	case n > math.MaxInt32:
		problem = fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath(dotPath(path)), n, problem)}
}
