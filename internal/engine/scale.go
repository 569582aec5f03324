package engine

import (
	"context"
	"fmt"
	"math"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// ScaleVersion is the version that the objects of every /scale have: autoscaling/v1 Scale.
// What a request for /scale answers is an Object of this version, and the body of one
// is decoded as one.
var ScaleVersion = newScaleVersion()

func newScaleVersion() *resource.Version {
	v := &resource.Version{
		Definition:   &resource.Definition{Group: "autoscaling", Names: resource.Names{Plural: "scales", Singular: "scale", Kind: "Scale"}, Namespaced: true},
		GroupVersion: autoscalingv1.SchemeGroupVersion,
		APIVersion:   autoscalingv1.SchemeGroupVersion.String(),
		Served:       true,
		Columns:      resource.ScaleColumns(),
		Type:         &resource.GoType{New: func() runtime.Object { return new(autoscalingv1.Scale) }},
	}
	v.Definition.Versions = []*resource.Version{v}
	v.Definition.Storage = v
	return v
}

// readScale is a GET of /scale.
func (e *Engine) readScale(ctx context.Context, t Target, rec *storage.Record) (Object, error) {
	parent, err := e.reader(t.Version).tree(ctx, object.Packed(rec.Value), rec.Modified)
	if err != nil {
		return Object{}, err
	}
	scale, found, err := scaleOf(t.Version.Scale, parent)
	if err != nil {
		return Object{}, plain(err.Error())
	}
	if !found {
		return Object{}, apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", dotted(t.Version.Scale.SpecReplicas)))
	}
	return Object{Version: ScaleVersion, Revision: rec.Modified, Packed: object.Pack(scale, 0)}, nil
}

func dotted(path []string) string { return "." + strings.Join(path, ".") }

// scaleOf is the Scale that an object shows. found is false if it has no replicas in its spec.
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
		if selector, _, err = unstructured.NestedString(parent, s.LabelSelector...); err != nil {
			return nil, false, err
		}
	}
	md := object.Tree{}
	for _, key := range []string{"name", "namespace", "uid", "resourceVersion", "creationTimestamp"} {
		keep(md, object.Metadata(parent), key)
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

func int32At(t object.Tree, path []string) (int64, bool, error) {
	n, found, err := unstructured.NestedInt64(t, path...)
	if err == nil && (n > math.MaxInt32 || n < math.MinInt32) {
		err = fmt.Errorf("%s: %d does not fit 32 bits", dotted(path), n)
	}
	return n, found, err
}

// updateScale is a PUT to /scale.
func (e *Engine) updateScale(ctx context.Context, t Target, b Body, c Caller) (Object, error) {
	w, err := e.begin(ctx, t, c)
	if err != nil {
		return Object{}, err
	}
	s := &writing{engine: e, target: t, caller: c, v: ScaleVersion, def: ScaleVersion.Definition}
	scale, err := s.accept(b)
	if err != nil {
		return Object{}, err
	}
	if err := s.located(scale); err != nil {
		return Object{}, err
	}
	return w.rescale(ctx, preconditions{uid: string(object.UID(scale))}, func(live object.Tree) (object.Tree, error) {
		return w.scaled(live, scale)
	})
}

// patchScale is a PATCH of /scale.
func (e *Engine) patchScale(ctx context.Context, t Target, p Patch, c Caller) (Object, error) {
	w, err := e.begin(ctx, t, c)
	if err != nil {
		return Object{}, err
	}
	s := &writing{engine: e, target: t, caller: c, v: ScaleVersion, def: ScaleVersion.Definition}
	if p.Type == types.ApplyYAMLPatchType {
		applied, err := s.decodeApplied(p.Data)
		if err != nil {
			return Object{}, err
		}
		return w.rescale(ctx, preconditions{}, func(live object.Tree) (object.Tree, error) {
			return w.applyScale(s, live, applied, p.Force)
		})
	}
	return w.rescale(ctx, preconditions{}, func(live object.Tree) (object.Tree, error) {
		scale, found, err := scaleOf(w.v.Scale, live)
		if err != nil {
			return nil, plain(err.Error())
		}
		if !found { // a number that no client sends marks what the patch has to set
			set, _ := scale["spec"].(object.Tree)
			set["replicas"] = int64(math.MinInt32)
		}
		out, err := s.patch(scale, p)
		if err != nil {
			return nil, err
		}
		if spec, _ := out["spec"].(object.Tree); object.Int64(spec, "replicas") == math.MinInt32 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the spec replicas field %q cannot be empty", dotted(w.v.Scale.SpecReplicas)))
		}
		return w.scaled(live, out)
	})
}

// rescale runs a change of the object and shows the result as a Scale.
func (w *writing) rescale(ctx context.Context, p preconditions, f change) (Object, error) {
	o, _, err := w.run(ctx, p, false, f)
	if err != nil {
		return Object{}, err
	}
	parent, err := o.Tree()
	if err != nil {
		return Object{}, apierrors.NewInternalError(err)
	}
	scale, _, err := scaleOf(w.v.Scale, parent)
	if err != nil {
		return Object{}, apierrors.NewBadRequest(err.Error())
	}
	return Object{Version: ScaleVersion, Revision: o.Revision, Packed: object.Pack(scale, 0)}, nil
}

// scaled is live with the replicas, and the resourceVersion if any, of scale.
func (w *writing) scaled(live, scale object.Tree) (object.Tree, error) {
	spec, _ := scale["spec"].(object.Tree)
	t := detach(live)
	if err := setCopied(t, object.Int64(spec, "replicas"), w.v.Scale.SpecReplicas); err != nil {
		return nil, plain(err.Error())
	}
	if rv := object.ResourceVersion(scale); rv != "" {
		object.SetResourceVersion(t, rv)
	}
	return w.own(live, t)
}

// applyScale applies a Scale: to the object, it is an apply of the replicas alone.
func (w *writing) applyScale(s *writing, live, applied object.Tree, force bool) (object.Tree, error) {
	if err := s.checkKind(applied); err != nil {
		return nil, err
	}
	config := object.Tree{"apiVersion": w.v.APIVersion, "kind": w.def.Names.Kind, "metadata": object.CopyValue(applied["metadata"])}
	spec, _ := applied["spec"].(object.Tree)
	if n, ok := spec["replicas"].(int64); ok {
		if err := setCopied(config, n, w.v.Scale.SpecReplicas); err != nil {
			return nil, plain(err.Error())
		}
	}
	return w.apply(live, config, force)
}

// setCopied sets a value at a path, copying the objects on the way.
func setCopied(t object.Tree, value any, path []string) error {
	for i, name := range path[:len(path)-1] {
		next, ok := t[name].(object.Tree)
		if t[name] != nil && !ok {
			return fmt.Errorf("value cannot be set because %s is not an object", dotted(path[:i+1]))
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

// detach copies the two levels of a tree that a write changes in place.
func detach(t object.Tree) object.Tree {
	out := make(object.Tree, len(t)+1)
	for k, v := range t {
		out[k] = v
	}
	if md := object.Metadata(t); md != nil {
		copied := make(object.Tree, len(md)+2)
		for k, v := range md {
			copied[k] = v
		}
		out["metadata"] = copied
	}
	return out
}

// validateScale checks the places that /scale reads.
func (w *writing) validateScale(t object.Tree, spec bool) (errs field.ErrorList) {
	s := w.v.Scale
	if s == nil {
		return nil
	}
	if spec {
		errs = append(errs, validateReplicas(t, s.SpecReplicas)...)
	}
	errs = append(errs, validateReplicas(t, s.StatusReplicas)...)
	if len(s.LabelSelector) > 0 {
		if text, _, err := unstructured.NestedString(t, s.LabelSelector...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(dotted(s.LabelSelector)), text, err.Error()))
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
	return field.ErrorList{field.Invalid(field.NewPath(dotted(path)), n, problem)}
}
