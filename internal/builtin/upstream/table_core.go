package upstream

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/endpoint"
	"k8s.io/kubernetes/pkg/registry/core/event"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
)

type (
	versions = []schema.GroupVersion
	updates  = map[string]rest.RESTUpdateStrategy
)

// core is the kinds of the group without a name.
func core() []line {
	v1 := versions{corev1.SchemeGroupVersion}
	return []line{
		{kind: "ConfigMap", plural: "configmaps", at: v1, short: "cm", main: configmap.Strategy, attributes: configmap.GetAttrs},
		{kind: "Endpoints", plural: "endpoints", at: v1, short: "ep", main: endpoint.Strategy, prefix: "services/endpoints"},
		{kind: "Event", plural: "events", at: versions{corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion}, short: "ev", main: event.Strategy, attributes: event.GetAttrs},
		{kind: "LimitRange", plural: "limitranges", at: v1, short: "limits", main: limitrange.Strategy, plain: true},
		{kind: "Namespace", plural: "namespaces", at: v1, short: "ns", main: namespace.Strategy, status: namespace.StatusStrategy, more: updates{"finalize": namespace.FinalizeStrategy}, attributes: namespace.GetAttrs, returned: true, noCollection: true},
		{kind: "Node", plural: "nodes", at: v1, short: "no", main: node.Strategy, status: node.StatusStrategy, attributes: node.GetAttrs, prefix: "minions"},
		{kind: "PersistentVolume", plural: "persistentvolumes", at: v1, short: "pv", main: persistentvolume.Strategy, status: persistentvolume.StatusStrategy, attributes: persistentvolume.GetAttrs, returned: true},
		{kind: "PersistentVolumeClaim", plural: "persistentvolumeclaims", at: v1, short: "pvc", main: persistentvolumeclaim.Strategy, status: persistentvolumeclaim.StatusStrategy, attributes: persistentvolumeclaim.GetAttrs, returned: true},
		{kind: "Pod", plural: "pods", at: v1, short: "po", categories: "all", main: pod.Strategy, status: pod.StatusStrategy, more: updates{"ephemeralcontainers": pod.EphemeralContainersStrategy, "resize": pod.ResizeStrategy}, attributes: pod.GetAttrs, returned: true},
		{kind: "PodTemplate", plural: "podtemplates", at: v1, main: podtemplate.Strategy, returned: true},
		{kind: "ReplicationController", plural: "replicationcontrollers", at: v1, short: "rc", categories: "all", main: replicationcontroller.Strategy, status: replicationcontroller.StatusStrategy, attributes: replicationcontroller.GetAttrs, prefix: "controllers"},
		{kind: "ResourceQuota", plural: "resourcequotas", at: v1, short: "quota", main: resourcequota.Strategy, status: resourcequota.StatusStrategy, returned: true},
		{kind: "Secret", plural: "secrets", at: v1, main: secret.Strategy, attributes: secret.GetAttrs},
		{kind: "Service", plural: "services", at: v1, short: "svc", categories: "all", main: service.Strategy, status: service.StatusStrategy, attributes: service.GetAttrs, returned: true, prefix: "services/specs"},
		{kind: "ServiceAccount", plural: "serviceaccounts", at: v1, short: "sa", main: serviceaccount.Strategy, returned: true},
	}
}
