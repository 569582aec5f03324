package upstream

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
)

// BeginDelete looks at a delete of obj before finalizers are looked at: it checks the options and their
// preconditions, and gives obj a time to end where the kind has a graceful end (Pod). graceful: obj was changed and
// is to be stored; without finalizers, and with o.GracePeriodSeconds at 0, it is removed. pending: it was on its way
// out already and nothing changes. o comes back changed. obj needs its resourceVersion, which o may name.
//
// The error is the StatusError to answer with. Times are those of the real clock.
func (k *Kind) BeginDelete(ctx context.Context, obj Object, o *metav1.DeleteOptions) (graceful, pending bool, err error) {
	return rest.BeforeDelete(k.main, ctx, obj, o)
}

// Graceful: some deletes of the kind leave the object for a while.
func (k *Kind) Graceful() bool {
	_, ok := k.main.(rest.RESTGracefulDeleteStrategy)
	return ok
}

// Dependents is what becomes of an object's dependents where neither the options of a delete nor the object's
// finalizers say it.
func (k *Kind) Dependents(ctx context.Context) rest.GarbageCollectionPolicy {
	if s, ok := k.main.(rest.GarbageCollectionDeleteStrategy); ok {
		return s.DefaultGarbageCollectionPolicy(ctx)
	}
	return rest.DeleteDependents
}
