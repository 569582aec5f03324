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
	"github.com/trellis-k8s/trellis/internal/admission/attributes"
	"github.com/trellis-k8s/trellis/internal/object"
)

// reviewRequest is a request for webhooks. It implements upstream's Attributes, at the version of the request and at
// the versions that webhooks require.
type reviewRequest struct {
	attributes.Attributes
	noInterfaces
	ctx      context.Context
	state    *writeState
	versions map[schema.GroupVersionKind]*upstream.VersionedAttributes
	mu       sync.Mutex // guards warnings, annotations and state.responses
}

// noInterfaces is a nil ObjectInterfaces. Upstream calls only the method GetEquivalentResourceMapper, which Attributes
// implements.
type noInterfaces struct{ upstream.ObjectInterfaces }

func (p *plugin) newReviewRequest(ctx context.Context, r *admission.Request) (*reviewRequest, error) {
	s := &reviewRequest{ctx: ctx, state: p.stateOf(r), Attributes: attributes.Attributes{Request: r}}
	return s, s.refresh()
}

// refresh loads the current objects.
func (s *reviewRequest) refresh() error {
	s.versions = map[schema.GroupVersionKind]*upstream.VersionedAttributes{}
	obj, old, err := attributes.Unstructured(s.ctx, s.Request, s.Request.Version)
	s.Attributes = attributes.New(s.Request, obj, old)
	return err
}

// tree returns the object at the version of the request, or nil.
func (s *reviewRequest) tree() object.Tree { return treeOf(s.GetObject()) }

func treeOf(o runtime.Object) object.Tree {
	if u, _ := o.(*unstructured.Unstructured); u != nil {
		return u.Object
	}
	return nil
}

// VersionedAttribute implements upstream's generic.VersionedAttributeAccessor.
func (s *reviewRequest) VersionedAttribute(kind schema.GroupVersionKind) (*upstream.VersionedAttributes, error) {
	if v := s.versions[kind]; v != nil {
		return v, nil
	}
	v := &upstream.VersionedAttributes{Attributes: s, VersionedKind: kind}
	obj, old := s.GetObject(), s.GetOldObject()
	if at := attributes.VersionOf(s.Request.Version.Definition, kind); at == nil {
		return nil, fmt.Errorf("unable to convert to %v: unknown kind", kind)
	} else if at != s.Request.Version {
		var err error
		if obj, old, err = attributes.Unstructured(s.ctx, s.Request, at); err != nil {
			return nil, err
		}
	}
	v.VersionedObject.Set(obj)
	v.VersionedOldObject.Set(old)
	s.versions[kind] = v
	return v, nil
}
