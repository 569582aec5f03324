// Package attributes converts requests to the attributes of upstream's admission plugins, webhooks and policies.
package attributes

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Attributes implements upstream's Attributes for a Request. It is also a warning.Recorder, and a
// runtime.EquivalentResourceMapper for the versions of the request's kind.
type Attributes struct {
	upstream.Attributes
	Request *admission.Request
}

// New returns the attributes of a request with the new and the stored object, which are nil if they do not exist.
func New(r *admission.Request, obj, old runtime.Object) Attributes {
	record := upstream.NewAttributesRecord(obj, old, r.Version.GroupVersionKind(), r.Namespace, r.Name, r.Resource,
		r.Subresource, upstream.Operation(r.Operation), r.Options(), r.DryRun, r.User)
	return Attributes{record, r}
}

// Internal returns the new and the stored object in the internal form of their kind. Kinds without an internal form are
// returned as unstructured objects at the version of the request.
func Internal(ctx context.Context, r *admission.Request) (obj, old runtime.Object, err error) {
	if r.Version.Type != nil && r.Version.Type.Internal != nil {
		obj, old, err := r.Internal()
		return obj, old, err
	}
	return Unstructured(ctx, r, r.Version)
}

// Unstructured returns the new and the stored object at a version of the kind as unstructured objects.
func Unstructured(ctx context.Context, r *admission.Request, at *resource.Version) (obj, old runtime.Object,
	err error) {
	newTree, err := r.New(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	oldTree, err := r.Old(ctx, at)
	return toUnstructured(newTree), toUnstructured(oldTree), err
}

func toUnstructured(t object.Tree) runtime.Object {
	if t == nil {
		return nil
	}
	return &unstructured.Unstructured{Object: t}
}

// AddAnnotation implements upstream's Attributes.
func (a Attributes) AddAnnotation(key, value string) error {
	a.Request.Annotate(key, value)
	return nil
}

// AddAnnotationWithLevel implements upstream's Attributes.
func (a Attributes) AddAnnotationWithLevel(key, value string, _ auditinternal.Level) error {
	return a.AddAnnotation(key, value)
}

// AddWarning implements warning.Recorder.
func (a Attributes) AddWarning(_, text string) { a.Request.Warn(text) }

// GetEquivalentResourceMapper implements upstream's ObjectInterfaces.
func (a Attributes) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return a }

// EquivalentResourcesFor implements runtime.EquivalentResourceMapper.
func (a Attributes) EquivalentResourcesFor(_ schema.GroupVersionResource,
	subresource string) (all []schema.GroupVersionResource) {
	d := a.Request.Target.Definition
	for _, v := range d.Versions {
		if v.Served && serves(v, subresource) {
			all = append(all, v.GroupVersion.WithResource(d.Names.Plural))
		}
	}
	return all
}

func serves(v *resource.Version, subresource string) bool {
	switch subresource {
	case "":
		return true
	case "status":
		return v.Status
	case "scale":
		return v.Scale != nil
	}
	return v.Subresource(subresource) != nil
}

// KindFor implements runtime.EquivalentResourceMapper.
func (a Attributes) KindFor(r schema.GroupVersionResource, _ string) schema.GroupVersionKind {
	v := a.Request.Version
	if v.Definition != a.Request.Target.Definition {
		return v.GroupVersionKind() // the kind of a subresource is the same at all versions
	}
	return r.GroupVersion().WithKind(v.Definition.Names.Kind)
}

// VersionOf returns the version of a kind with the given GroupVersionKind, or nil.
func VersionOf(d *resource.Definition, gvk schema.GroupVersionKind) *resource.Version {
	for _, v := range d.Versions {
		if v.GroupVersionKind() == gvk {
			return v
		}
	}
	return nil
}
