package policy

import (
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// namespaces are the Namespaces at the head of the store: expressions get that of each object, so one is decoded once.
type namespaces struct {
	corelisters.NamespaceLister // nil: they are found by name alone
	head                        func() *storage.Snapshot
	known                       sync.Map // by name: *namespace
}

type namespace struct {
	of     *storage.Record
	object *corev1.Namespace // read only
}

// Get implements corelisters.NamespaceLister.
func (n *namespaces) Get(name string) (*corev1.Namespace, error) {
	rec := n.head().Get("/registry/namespaces/" + name)
	if rec == nil {
		n.known.Delete(name)
		return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), name)
	}
	if known, ok := n.known.Load(name); ok && known.(*namespace).of == rec {
		return known.(*namespace).object, nil
	}
	made := &namespace{rec, &corev1.Namespace{}}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(rec.Value, made.object); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	made.object.ResourceVersion = strconv.FormatInt(rec.Modified, 10)
	n.known.Store(name, made)
	return made.object, nil
}
