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

// seen is a request as webhooks see it, at the version of the request and at those that they want: upstream's Attributes and what
// goes with them.
type seen struct {
	attributes.Attributes
	nothing
	ctx  context.Context
	kept *kept
	at   map[schema.GroupVersionKind]*upstream.VersionedAttributes
	mu   sync.Mutex // for warnings, annotations and answers
}

// nothing is upstream's ObjectInterfaces, of which only the mapper is asked for, that Attributes have.
type nothing struct{ upstream.ObjectInterfaces }

func (p *plugin) see(ctx context.Context, r *admission.Request) (*seen, error) {
	s := &seen{ctx: ctx, kept: p.keptOf(r), Attributes: attributes.Attributes{Request: r}}
	return s, s.look()
}

// look takes the objects as they are now.
func (s *seen) look() error {
	s.at = map[schema.GroupVersionKind]*upstream.VersionedAttributes{}
	obj, old, err := attributes.Trees(s.ctx, s.Request, s.Request.Version)
	s.Attributes = attributes.Of(s.Request, obj, old)
	return err
}

// tree is the object at the version of the request, nil where there is none.
func (s *seen) tree() object.Tree { return treeOf(s.GetObject()) }

func treeOf(o runtime.Object) object.Tree {
	if u, _ := o.(*unstructured.Unstructured); u != nil {
		return u.Object
	}
	return nil
}

// VersionedAttribute implements upstream's generic.VersionedAttributeAccessor.
func (s *seen) VersionedAttribute(kind schema.GroupVersionKind) (*upstream.VersionedAttributes, error) {
	if v := s.at[kind]; v != nil {
		return v, nil
	}
	v := &upstream.VersionedAttributes{Attributes: s, VersionedKind: kind}
	obj, old := s.GetObject(), s.GetOldObject()
	if at := attributes.VersionOf(s.Request.Version.Definition, kind); at == nil {
		return nil, fmt.Errorf("unable to convert to %v: unknown kind", kind)
	} else if at != s.Request.Version {
		var err error
		if obj, old, err = attributes.Trees(s.ctx, s.Request, at); err != nil {
			return nil, err
		}
	}
	v.VersionedObject.Set(obj)
	v.VersionedOldObject.Set(old)
	s.at[kind] = v
	return v, nil
}
