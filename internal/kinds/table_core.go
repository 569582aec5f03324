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

// coreKinds returns the kinds of the core group, and Event, which also belongs to events.k8s.io.
func coreKinds(c Config) []entry {
	v1, addresses := versions{corev1.SchemeGroupVersion}, newPool(c)
	var pods, nodes resource.Behavior
	guardBindings(c, &pods, &nodes)
	return []entry{
		{kind: "ComponentStatus", plural: "componentstatuses", versions: v1, short: "cs", compute: c.components,
			warning: "v1 ComponentStatus is deprecated in v1.19+"},
		{kind: "ConfigMap", plural: "configmaps", versions: v1, short: "cm", main: configmap.Strategy},
		{kind: "Endpoints", plural: "endpoints", versions: v1, short: "ep", main: endpoint.Strategy,
			warning: "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
			prefix:  "services/endpoints"},
		{kind: "Event", plural: "events", versions: versions{corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion},
			short: "ev", main: event.Strategy, fields: eventFields,
			behavior: resource.Behavior{TTL: int64(c.EventTTL / time.Second)}},
		{kind: "LimitRange", plural: "limitranges", versions: v1, short: "limits", main: limitrange.Strategy,
			plainTable: true},
		{kind: "Namespace", plural: "namespaces", versions: v1, short: "ns", main: namespace.Strategy,
			status: namespace.StatusStrategy, subresources: updates{"finalize": namespace.FinalizeStrategy},
			fields: []string{"status.phase"}, behavior: namespaceBehavior, returnsDeleted: true,
			noDeleteCollection: true},
		{kind: "Node", plural: "nodes", versions: v1, short: "no", main: node.Strategy, status: node.StatusStrategy,
			fields: []string{"spec.unschedulable:false"}, actions: []resource.Subresource{nodeProxy()}, behavior: nodes,
			prefix: "minions"},
		{kind: "PersistentVolume", plural: "persistentvolumes", versions: v1, short: "pv",
			main: persistentvolume.Strategy, status: persistentvolume.StatusStrategy, returnsDeleted: true},
		{kind: "PersistentVolumeClaim", plural: "persistentvolumeclaims", versions: v1, short: "pvc",
			main: persistentvolumeclaim.Strategy, status: persistentvolumeclaim.StatusStrategy, returnsDeleted: true},
		{kind: "Pod", plural: "pods", versions: v1, short: "po", categories: "all", main: pod.Strategy,
			status: pod.StatusStrategy, subresources: updates{
				"ephemeralcontainers": pod.EphemeralContainersStrategy, "resize": pod.ResizeStrategy,
			}, actions: append(podConnects(), binding(), c.eviction()),
			fields: podFields, behavior: pods, returnsDeleted: true},
		{kind: "PodTemplate", plural: "podtemplates", versions: v1, main: podtemplate.Strategy, returnsDeleted: true},
		{kind: "ReplicationController", plural: "replicationcontrollers", versions: v1, short: "rc", categories: "all",
			main: replicationcontroller.Strategy, status: replicationcontroller.StatusStrategy,
			scale: replicasScale(formatLabelSet), fields: []string{"status.replicas:0"}, prefix: "controllers"},
		{kind: "ResourceQuota", plural: "resourcequotas", versions: v1, short: "quota", main: c.quotaStrategy(),
			status: resourcequota.StatusStrategy, returnsDeleted: true},
		{kind: "Secret", plural: "secrets", versions: v1, main: secret.Strategy, fields: []string{"type"}},
		{kind: "Service", plural: "services", versions: v1, short: "svc", categories: "all", main: service.Strategy,
			status: service.StatusStrategy, actions: []resource.Subresource{proxy("ServiceProxyOptions")},
			fields: []string{"spec.clusterIP spec.type"}, prepare: addresses.prepare,
			behavior:       resource.Behavior{Guards: addresses.guards, RelatedWrites: addresses.relatedWrites},
			returnsDeleted: true, prefix: "services/specs"},
		{kind: "ServiceAccount", plural: "serviceaccounts", versions: v1, short: "sa", main: serviceaccount.Strategy,
			returnsDeleted: true, actions: c.serviceAccountActions()},
	}
}

var (
	// Upstream accepts status.podIPs, but its value is always empty.
	podFields = []string{
		"spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork:false " +
			"status.phase status.podIP status.podIPs=none status.nominatedNodeName spec.host=spec.nodeName",
	}
	eventFields = []string{
		"involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid " +
			"involvedObject.apiVersion involvedObject.resourceVersion involvedObject.fieldPath reason " +
			"reportingComponent source=source.component|reportingComponent type",
		"regarding.kind regarding.namespace regarding.name regarding.uid regarding.apiVersion " +
			"regarding.resourceVersion regarding.fieldPath reason reportingController type",
	}
)
