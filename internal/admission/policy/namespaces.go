package policy

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// namespaceLister reads the latest Namespaces in the store. Expressions use the Namespace of each object, so decoded
// Namespaces are cached.
type namespaceLister struct {
	corelisters.NamespaceLister // nil; only Get is called
	head                        func() *storage.Snapshot
	cache                       recordCache[*corev1.Namespace]
}

// Get implements corelisters.NamespaceLister.
func (n *namespaceLister) Get(name string) (*corev1.Namespace, error) {
	rec := n.head().Get("/registry/namespaces/" + name)
	if rec == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), name)
	}
	return n.cache.get(rec, corev1.SchemeGroupVersion.Version, func() (*corev1.Namespace, error) {
		ns := &corev1.Namespace{}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(rec.Value, ns); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		ns.ResourceVersion = strconv.FormatInt(rec.Modified, 10)
		return ns, nil
	})
}
