package kinds

import (
	"time"

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

	"github.com/trellis-k8s/trellis/internal/resource"
)

type (
	versions = []schema.GroupVersion
	updates  = map[string]rest.RESTUpdateStrategy
)

// coreKinds is the kinds of the group without a name.
func coreKinds(c Config) []line {
	v1, addresses := versions{corev1.SchemeGroupVersion}, newPool(c)
	var pods, nodes resource.Behavior
	guardBindings(c, &pods, &nodes)
	return []line{
		{kind: "ComponentStatus", plural: "componentstatuses", at: v1, short: "cs", compute: c.components, warning: "v1 ComponentStatus is deprecated in v1.19+"},
		{kind: "ConfigMap", plural: "configmaps", at: v1, short: "cm", main: configmap.Strategy},
		{kind: "Endpoints", plural: "endpoints", at: v1, short: "ep", main: endpoint.Strategy, warning: "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice", prefix: "services/endpoints"},
		{kind: "Event", plural: "events", at: versions{corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion}, short: "ev", main: event.Strategy, fields: eventFields, behavior: resource.Behavior{TTL: int64(c.EventTTL / time.Second)}},
		{kind: "LimitRange", plural: "limitranges", at: v1, short: "limits", main: limitrange.Strategy, plain: true},
		{kind: "Namespace", plural: "namespaces", at: v1, short: "ns", main: namespace.Strategy, status: namespace.StatusStrategy, more: updates{"finalize": namespace.FinalizeStrategy}, fields: []string{"status.phase"}, behavior: namespaceEnd, returned: true, noCollection: true},
		{kind: "Node", plural: "nodes", at: v1, short: "no", main: node.Strategy, status: node.StatusStrategy, fields: []string{"spec.unschedulable:false"}, acts: []resource.Subresource{nodeProxy()}, behavior: nodes, prefix: "minions"},
		{kind: "PersistentVolume", plural: "persistentvolumes", at: v1, short: "pv", main: persistentvolume.Strategy, status: persistentvolume.StatusStrategy, returned: true},
		{kind: "PersistentVolumeClaim", plural: "persistentvolumeclaims", at: v1, short: "pvc", main: persistentvolumeclaim.Strategy, status: persistentvolumeclaim.StatusStrategy, returned: true},
		{kind: "Pod", plural: "pods", at: v1, short: "po", categories: "all", main: pod.Strategy, status: pod.StatusStrategy, more: updates{"ephemeralcontainers": pod.EphemeralContainersStrategy, "resize": pod.ResizeStrategy}, acts: append(podConnects(), binding(), c.eviction()), fields: podFields, behavior: pods, returned: true},
		{kind: "PodTemplate", plural: "podtemplates", at: v1, main: podtemplate.Strategy, returned: true},
		{kind: "ReplicationController", plural: "replicationcontrollers", at: v1, short: "rc", categories: "all", main: replicationcontroller.Strategy, status: replicationcontroller.StatusStrategy, scale: scaleBy(setText), fields: []string{"status.replicas:0"}, prefix: "controllers"},
		{kind: "ResourceQuota", plural: "resourcequotas", at: v1, short: "quota", main: c.quotaStrategy(), status: resourcequota.StatusStrategy, returned: true},
		{kind: "Secret", plural: "secrets", at: v1, main: secret.Strategy, fields: []string{"type"}},
		{kind: "Service", plural: "services", at: v1, short: "svc", categories: "all", main: service.Strategy, status: service.StatusStrategy, acts: []resource.Subresource{proxy("ServiceProxyOptions")}, fields: []string{"spec.clusterIP spec.type"}, begin: addresses.begin, behavior: resource.Behavior{Guards: addresses.guards, RelatedWrites: addresses.along}, returned: true, prefix: "services/specs"},
		{kind: "ServiceAccount", plural: "serviceaccounts", at: v1, short: "sa", main: serviceaccount.Strategy, returned: true, acts: c.accountActs()},
	}
}

var (
	podFields = []string{"spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName " +
		"spec.hostNetwork:false status.phase status.podIP status.podIPs=none status.nominatedNodeName spec.host=spec.nodeName"} // upstream knows podIPs, and fills it with nothing
	eventFields = []string{
		"involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid involvedObject.apiVersion " +
			"involvedObject.resourceVersion involvedObject.fieldPath reason reportingComponent source=source.component|reportingComponent type",
		"regarding.kind regarding.namespace regarding.name regarding.uid regarding.apiVersion regarding.resourceVersion " +
			"regarding.fieldPath reason reportingController type",
	}
)
