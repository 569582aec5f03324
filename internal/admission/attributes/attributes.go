// Package attributes is a request as upstream's admission plugins, webhooks and policies see it.
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

// Attributes are upstream's of a Request. They also hear warnings, as a warning.Recorder, and know where else the same objects are, as
// a runtime.EquivalentResourceMapper.
type Attributes struct {
	upstream.Attributes
	Request *admission.Request
}

// Of are those of a request with its objects in one of their forms, nil for what is not there.
func Of(r *admission.Request, obj, old runtime.Object) Attributes {
	return Attributes{upstream.NewAttributesRecord(obj, old, r.Version.GroupVersionKind(), r.Namespace, r.Name, r.Resource, r.Subresource,
		upstream.Operation(r.Operation), r.Options(), r.DryRun, r.User), r}
}

// Internal are what is written and what there is in the internal form of kinds that have one, and others at the version of the request.
func Internal(ctx context.Context, r *admission.Request) (obj, old runtime.Object, err error) {
	if r.Version.Type != nil && r.Version.Type.Internal != nil {
		obj, old, err := r.Internal()
		return obj, old, err
	}
	return Trees(ctx, r, r.Version)
}

// Trees are what is written and what there is, at a version of the kind, as unstructured objects.
func Trees(ctx context.Context, r *admission.Request, at *resource.Version) (obj, old runtime.Object, err error) {
	is, err := r.New(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	was, err := r.Old(ctx, at)
	return asObject(is), asObject(was), err
}

func asObject(t object.Tree) runtime.Object {
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
func (a Attributes) EquivalentResourcesFor(_ schema.GroupVersionResource, subresource string) (all []schema.GroupVersionResource) {
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
	of := a.Request.Version
	if of.Definition != a.Request.Target.Definition {
		return of.GroupVersionKind() // the same for all versions of what has the subresource
	}
	return r.GroupVersion().WithKind(of.Definition.Names.Kind)
}

// VersionOf is the version of a kind that has a GroupVersionKind; nil if none has.
func VersionOf(d *resource.Definition, gvk schema.GroupVersionKind) *resource.Version {
	for _, v := range d.Versions {
		if v.GroupVersionKind() == gvk {
			return v
		}
	}
	return nil
}
