package plugins

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"

	store "github.com/trellis-k8s/trellis/internal/storage"
)

const deviceClasses = "/registry/deviceclasses/"

// claimEvaluator counts the devices of ResourceClaims as upstream does, with the latest objects in the store.
type claimEvaluator struct {
	quota.Evaluator
	classes *classCache
}

func newClaimEvaluator(i Informers) claimEvaluator {
	c := &classCache{
		ExtendedResourceCache: extendedresourcecache.NewExtendedResourceCache(klog.Background()), informers: i,
	}
	c.Head, c.Advance = i.Head, c.advance
	lister := i.Resource().V1().ResourceClaims().Lister()
	ofPod := func(namespace string, pod types.UID) (claims []*resourcev1.ResourceClaim, err error) {
		all, err := lister.ResourceClaims(namespace).List(labels.Everything())
		for _, claim := range all {
			c := metav1.GetControllerOfNoCopy(claim)
			if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" && c != nil && c.Kind == "Pod" &&
				c.APIVersion == corev1.SchemeGroupVersion.String() && c.UID == pod {
				claims = append(claims, claim)
			}
		}
		return claims, err
	}
	e := core.NewResourceClaimEvaluator(nil, c.ExtendedResourceCache, i.Core().V1().Pods().Lister(), ofPod)
	return claimEvaluator{e, c}
}

// Handles implements quota.Evaluator. It updates the cache, because it is the first method called for a write.
func (c claimEvaluator) Handles(a upstream.Attributes) bool {
	c.classes.Refresh()
	return c.Evaluator.Handles(a)
}

// classCache holds the names of extended resources by DeviceClass, in the latest state of the store.
type classCache struct {
	*extendedresourcecache.ExtendedResourceCache
	store.Follower
	informers Informers
}

func (c *classCache) advance(seen, head *store.Snapshot) {
	for oldRec, newRec := range head.Since(seen, deviceClasses) {
		before, after := c.load(oldRec), c.load(newRec)
		switch {
		case before == nil && after != nil:
			c.OnAdd(after, false)
		case before != nil && after != nil:
			c.OnUpdate(before, after)
		case before != nil:
			c.OnDelete(before)
		}
	}
}

// load returns the DeviceClass in a record. It returns nil if rec is nil or cannot be decoded, or if the server does
// not serve DeviceClasses.
func (c *classCache) load(rec *store.Record) *resourcev1.DeviceClass {
	v := versionOf(c.informers.Catalog(), reflect.TypeFor[*resourcev1.DeviceClass]())
	if rec == nil || v == nil {
		return nil
	}
	obj, err := load(v, rec)
	if err != nil {
		return nil
	}
	class, _ := obj.(*resourcev1.DeviceClass)
	return class
}
