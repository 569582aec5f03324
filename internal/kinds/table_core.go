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

	"github.com/trellis-k8s/trellis/internal/kinds/accounts"
	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/kinds/pods"
	"github.com/trellis-k8s/trellis/internal/kinds/pods/capacity"
	"github.com/trellis-k8s/trellis/internal/kinds/services"
	"github.com/trellis-k8s/trellis/internal/resource"
)

type (
	versions = []schema.GroupVersion
	updates  = map[string]rest.RESTUpdateStrategy
)

// coreKinds returns the kinds of the core group, and Event, which also belongs to events.k8s.io.
func coreKinds(c Config) []define.Entry {
	v1 := versions{corev1.SchemeGroupVersion}
	addresses := services.NewPool(c.Head, c.ServiceRanges, c.NodePorts)
	var onPod, onNode resource.Behavior
	if !c.UnguardedBindings {
		usage := capacity.New(c.Head)
		onPod.ReserveCapacity, onNode.ReserveCapacity = usage.ReserveForPod, usage.ReserveForNode
	}
	return []define.Entry{
		{Kind: "ComponentStatus", Plural: "componentstatuses", Versions: v1, Short: "cs", Compute: c.components,
			Warning: "v1 ComponentStatus is deprecated in v1.19+"},
		{Kind: "ConfigMap", Plural: "configmaps", Versions: v1, Short: "cm", Main: configmap.Strategy},
		{Kind: "Endpoints", Plural: "endpoints", Versions: v1, Short: "ep", Main: endpoint.Strategy,
			Warning: "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
			Prefix:  "services/endpoints"},
		{Kind: "Event", Plural: "events", Versions: versions{corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion},
			Short: "ev", Main: event.Strategy, Fields: eventFields,
			Behavior: resource.Behavior{TTL: int64(c.EventTTL / time.Second)}},
		{Kind: "LimitRange", Plural: "limitranges", Versions: v1, Short: "limits", Main: limitrange.Strategy,
			PlainTable: true},
		{Kind: "Namespace", Plural: "namespaces", Versions: v1, Short: "ns", Main: namespace.Strategy,
			Status: namespace.StatusStrategy, Subresources: updates{"finalize": namespace.FinalizeStrategy},
			Fields: []string{"status.phase"}, Behavior: namespaceBehavior, ReturnsDeleted: true,
			NoDeleteCollection: true},
		{Kind: "Node", Plural: "nodes", Versions: v1, Short: "no", Main: node.Strategy, Status: node.StatusStrategy,
			Fields: []string{"spec.unschedulable:false"}, Actions: []resource.Subresource{nodeProxy()},
			Behavior: onNode, Prefix: "minions"},
		{Kind: "PersistentVolume", Plural: "persistentvolumes", Versions: v1, Short: "pv",
			Main: persistentvolume.Strategy, Status: persistentvolume.StatusStrategy, ReturnsDeleted: true},
		{Kind: "PersistentVolumeClaim", Plural: "persistentvolumeclaims", Versions: v1, Short: "pvc",
			Main: persistentvolumeclaim.Strategy, Status: persistentvolumeclaim.StatusStrategy, ReturnsDeleted: true},
		{Kind: "Pod", Plural: "pods", Versions: v1, Short: "po", Categories: "all", Main: pod.Strategy,
			Status: pod.StatusStrategy, Subresources: updates{
				"ephemeralcontainers": pod.EphemeralContainersStrategy, "resize": pod.ResizeStrategy,
			}, Actions: append(podConnects(), pods.Binding(), pods.Eviction(c.Now, c.Head)),
			Fields: podFields, Behavior: onPod, ReturnsDeleted: true},
		{Kind: "PodTemplate", Plural: "podtemplates", Versions: v1, Main: podtemplate.Strategy, ReturnsDeleted: true},
		{Kind: "ReplicationController", Plural: "replicationcontrollers", Versions: v1, Short: "rc", Categories: "all",
			Main: replicationcontroller.Strategy, Status: replicationcontroller.StatusStrategy,
			Scale: replicasScale(formatLabelSet), Fields: []string{"status.replicas:0"}, Prefix: "controllers"},
		{Kind: "ResourceQuota", Plural: "resourcequotas", Versions: v1, Short: "quota", Main: c.quotaStrategy(),
			Status: resourcequota.StatusStrategy, ReturnsDeleted: true},
		{Kind: "Secret", Plural: "secrets", Versions: v1, Main: secret.Strategy, Fields: []string{"type"}},
		{Kind: "Service", Plural: "services", Versions: v1, Short: "svc", Categories: "all", Main: service.Strategy,
			Status: service.StatusStrategy, Actions: []resource.Subresource{proxy("ServiceProxyOptions")},
			Fields: []string{"spec.clusterIP spec.type"}, Prepare: addresses.Prepare,
			Behavior:       resource.Behavior{Guards: addresses.Guards, RelatedWrites: addresses.RelatedWrites},
			ReturnsDeleted: true, Prefix: "services/specs"},
		{Kind: "ServiceAccount", Plural: "serviceaccounts", Versions: v1, Short: "sa", Main: serviceaccount.Strategy,
			ReturnsDeleted: true, Actions: accounts.Subresources(accounts.Tokens{
				Now: c.Now, Head: c.Head, Issuer: c.Issuer, Audiences: c.Audiences, MaxExpiration: c.MaxTokenExpiration,
			})},
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
