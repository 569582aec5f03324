package policy

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// namespaceLister are the Namespaces at the head of the store: expressions get that of each object, so one is decoded once.
type namespaceLister struct {
	corelisters.NamespaceLister // nil: they are found by name alone
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
		made := &corev1.Namespace{}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(rec.Value, made); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		made.ResourceVersion = strconv.FormatInt(rec.Modified, 10)
		return made, nil
	})
}
