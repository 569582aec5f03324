package extension

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// Typed returns a function for Kind.Admit or Kind.Validate. This function calls f with objects of the Go type T of
// the storage version. The parameter obj of f is the decoded Request.New, or nil on a delete. The parameter old is
// the decoded Request.Old, or nil on a create.
func Typed[T any](f func(ctx context.Context, r *Request, obj, old *T) error) func(context.Context, *Request) error {
	return func(ctx context.Context, r *Request) error {
		obj, err := fromUnstructured[T](r.New)
		if err != nil {
			return err
		}
		old, err := fromUnstructured[T](r.Old)
		if err != nil {
			return err
		}
		if err := f(ctx, r, obj, old); err != nil || obj == nil {
			return err
		}
		r.New.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		return err
	}
}

func fromUnstructured[T any](u *unstructured.Unstructured) (*T, error) {
	if u == nil {
		return nil, nil
	}
	obj := new(T)
	return obj, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj)
}

// useTypes adds the Go types of the scheme to the versions of the definition d. It returns an error if the scheme
// cannot convert between these types.
func (k *Kind) useTypes(d *resource.Definition) (err error) {
	for _, v := range d.Versions {
		empty, errNew := k.Scheme.New(v.GroupVersionKind())
		if errNew != nil {
			return errNew
		}
		v.Type = &resource.GoType{New: empty.DeepCopyObject, Default: k.Scheme.Default,
			NoProtobuf: !resource.IsProtobuf(empty)}
		if v.ConvertTo == nil || k.Convert != nil {
			continue
		}
		for _, direction := range []struct {
			from    *resource.Version
			convert func(map[string]any) (map[string]any, error)
		}{{v, v.ConvertTo}, {d.Storage, v.ConvertFrom}} {
			_, failed := direction.convert(map[string]any{"apiVersion": direction.from.APIVersion,
				"kind": d.Names.Kind})
			err = errors.Join(err, failed)
		}
	}
	return err
}

// convertByScheme converts an object with the scheme. It converts through the internal version if the scheme has one.
func (k *Kind) convertByScheme(o *unstructured.Unstructured, toVersion string) (*unstructured.Unstructured, error) {
	gvk := schema.FromAPIVersionAndKind(toVersion, o.GetKind())
	in, err := k.Scheme.New(o.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	out, err := k.Scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, in); err != nil {
		return nil, fmt.Errorf("decode %s: %w", o.GroupVersionKind(), err)
	}
	if internal := (schema.GroupVersion{Group: gvk.Group,
		Version: runtime.APIVersionInternal}); k.Scheme.Recognizes(internal.WithKind(gvk.Kind)) {
		if in, err = k.Scheme.UnsafeConvertToVersion(in, internal); err != nil {
			return nil, err
		}
	}
	if err := k.Scheme.Convert(in, out, nil); err != nil {
		return nil, err
	}
	out.GetObjectKind().SetGroupVersionKind(gvk)
	t, err := resource.ToTree(out)
	return &unstructured.Unstructured{Object: t}, err
}
