package webhook

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// seen is a request as webhooks see it, at the version of the request and at those that they want: upstream's Attributes and what
// goes with them.
type seen struct {
	upstream.Attributes
	upstream.ObjectInterfaces // nil but for the mapper
	ctx                       context.Context
	request                   *admission.Request
	at                        map[schema.GroupVersionKind]*upstream.VersionedAttributes
	mu                        sync.Mutex // for warnings and annotations
}

func newSeen(ctx context.Context, r *admission.Request) (*seen, error) {
	s := &seen{ctx: ctx, request: r}
	return s, s.look()
}

// look takes the objects as they are now.
func (s *seen) look() error {
	r := s.request
	s.at = map[schema.GroupVersionKind]*upstream.VersionedAttributes{}
	obj, old, err := s.objects(r.Version)
	s.Attributes = upstream.NewAttributesRecord(obj, old, r.Version.GroupVersionKind(), r.Namespace, r.Name, r.Resource, r.Subresource,
		upstream.Operation(r.Operation), r.Options(), r.DryRun, r.User)
	return err
}

// objects are what is written and what there is, nil for what is not there.
func (s *seen) objects(at *resource.Version) (obj, old runtime.Object, err error) {
	is, err := s.request.New(s.ctx, at)
	if err != nil {
		return nil, nil, err
	}
	was, err := s.request.Old(s.ctx, at)
	return asObject(is), asObject(was), err
}

// tree is the object at the version of the request, nil where there is none.
func (s *seen) tree() object.Tree {
	if u, _ := s.GetObject().(*unstructured.Unstructured); u != nil {
		return u.Object
	}
	return nil
}

func asObject(t object.Tree) runtime.Object {
	if t == nil {
		return nil
	}
	return &unstructured.Unstructured{Object: t}
}

// VersionedAttribute implements upstream's generic.VersionedAttributeAccessor.
func (s *seen) VersionedAttribute(kind schema.GroupVersionKind) (*upstream.VersionedAttributes, error) {
	if v := s.at[kind]; v != nil {
		return v, nil
	}
	v := &upstream.VersionedAttributes{Attributes: s, VersionedKind: kind}
	obj, old := s.GetObject(), s.GetOldObject()
	if at := s.version(kind); at == nil {
		return nil, fmt.Errorf("unable to convert to %v: unknown kind", kind)
	} else if at != s.request.Version {
		var err error
		if obj, old, err = s.objects(at); err != nil {
			return nil, err
		}
	}
	v.VersionedObject.Set(obj)
	v.VersionedOldObject.Set(old)
	s.at[kind] = v
	return v, nil
}

// version is that of the objects which has a kind.
func (s *seen) version(kind schema.GroupVersionKind) *resource.Version {
	for _, v := range s.request.Version.Definition.Versions {
		if v.GroupVersionKind() == kind {
			return v
		}
	}
	return nil
}

// AddAnnotation implements upstream's Attributes.
func (s *seen) AddAnnotation(key, value string) error {
	s.request.Annotate(key, value)
	return nil
}

// GetEquivalentResourceMapper implements upstream's ObjectInterfaces.
func (s *seen) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return s }

// EquivalentResourcesFor implements upstream's EquivalentResourceMapper.
func (s *seen) EquivalentResourcesFor(_ schema.GroupVersionResource, subresource string) (all []schema.GroupVersionResource) {
	d := s.request.Target.Definition
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

// KindFor implements upstream's EquivalentResourceMapper.
func (s *seen) KindFor(r schema.GroupVersionResource, _ string) schema.GroupVersionKind {
	if of := s.request.Version; of.Definition != s.request.Target.Definition {
		return of.GroupVersionKind() // the same for all versions of what has the subresource
	}
	return r.GroupVersion().WithKind(s.request.Version.Definition.Names.Kind)
}
