package kinds

import (
	"context"
	"path"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// lister reads the objects of one kind from the head of the store. Its results include every completed write.
type lister struct {
	head     func() *storage.Snapshot // nil means that there are no objects
	resource schema.GroupResource
	prefix   string
	goType   *resource.GoType
}

func (c Config) lister(gv schema.GroupVersion, kind, plural string) lister {
	return lister{c.Head, gv.WithResource(plural).GroupResource(), "/registry/" + plural + "/",
		typeAt(gv, resource.Names{Kind: kind, ListKind: kind + "List"})}
}

// record returns the record of an object, or a NotFound error. name is "namespace/name" for a namespaced kind.
func (l lister) record(name string) (*storage.Record, error) {
	if l.head != nil {
		if rec := l.head().Get(l.prefix + name); rec != nil {
			return rec, nil
		}
	}
	return nil, apierrors.NewNotFound(l.resource, path.Base(name))
}

// internal returns an object in the internal version.
func (l lister) internal(name string) (resource.Internal, error) {
	rec, err := l.record(name)
	if err != nil {
		return nil, err
	}
	return l.goType.Load(rec.Value)
}

// policyLister returns the policies that policy bindings refer to.
type policyLister struct{ validating, mutating lister }

func (l policyLister) GetValidatingAdmissionPolicy(
	_ context.Context, name string,
) (*admissionregistration.ValidatingAdmissionPolicy, error) {
	obj, err := l.validating.internal(name)
	if err != nil {
		return nil, err
	}
	return obj.(*admissionregistration.ValidatingAdmissionPolicy), nil
}

func (l policyLister) GetMutatingAdmissionPolicy(
	_ context.Context, name string,
) (*admissionregistration.MutatingAdmissionPolicy, error) {
	obj, err := l.mutating.internal(name)
	if err != nil {
		return nil, err
	}
	return obj.(*admissionregistration.MutatingAdmissionPolicy), nil
}

// namespaceLister implements only the method Get of the client, because strategies call no other.
type namespaceLister struct {
	typedcorev1.NamespaceInterface // nil
	lister
}

func (l namespaceLister) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	rec, err := l.record(name)
	if err != nil {
		return nil, err
	}
	obj, err := l.goType.Object(rec.Value)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Namespace), nil
}
