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

// devices counts the devices of ResourceClaims as upstream does, by the objects at the head of the store.
type devices struct {
	quota.Evaluator
	classes *classes
}

func newDevices(from Informers) devices {
	c := &classes{ExtendedResourceCache: extendedresourcecache.NewExtendedResourceCache(klog.Background()), from: from}
	c.Head, c.Advance = from.Head, c.advance
	owned := from.Resource().V1().ResourceClaims().Lister()
	ofPod := func(namespace string, pod types.UID) (of []*resourcev1.ResourceClaim, err error) {
		all, err := owned.ResourceClaims(namespace).List(labels.Everything())
		for _, claim := range all {
			if c := metav1.GetControllerOfNoCopy(claim); claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" &&
				c != nil && c.Kind == "Pod" && c.APIVersion == corev1.SchemeGroupVersion.String() && c.UID == pod {
				of = append(of, claim)
			}
		}
		return of, err
	}
	return devices{core.NewResourceClaimEvaluator(nil, c.ExtendedResourceCache, from.Core().V1().Pods().Lister(), ofPod), c}
}

// Handles implements quota.Evaluator. It is the first function that is called for a write.
func (c devices) Handles(a upstream.Attributes) bool {
	c.classes.Refresh()
	return c.Evaluator.Handles(a)
}

// classes are the names of extended resources by DeviceClass, at the head of the store.
type classes struct {
	*extendedresourcecache.ExtendedResourceCache
	store.Follower
	from Informers
}

func (c *classes) advance(seen, head *store.Snapshot) {
	for was, is := range head.Since(seen, deviceClasses) {
		before, after := c.load(was), c.load(is)
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

// load returns the DeviceClass of a record; nil if there is none.
func (c *classes) load(rec *store.Record) *resourcev1.DeviceClass {
	v := versionOf(c.from.Catalog(), reflect.TypeFor[*resourcev1.DeviceClass]())
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
