package apiserver

import (
	"errors"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/trellis-k8s/trellis/internal/api/health"
)

// These constants are the names of kube-apiserver's post-start hooks. They contain only hooks whose tasks Trellis
// also has. The task of a controller is done when the controller runs.
const (
	hookCRDControllers    = "start-apiextensions-controllers"
	hookCRDs              = "crd-informer-synced"
	hookNamespaces        = "start-system-namespaces-controller"
	hookTrust             = "start-cluster-authentication-info-controller"
	hookIdentity          = "start-kube-apiserver-identity-lease-controller"
	hookIdentityCollector = "start-kube-apiserver-identity-lease-garbage-collector"
	hookStorage           = "storage-readiness"
	hookTokenTracking     = "start-legacy-token-tracking-controller"
	hookAddresses         = "start-service-ip-repair-controllers"
	hookRoles             = "rbac/bootstrap-roles"
	hookPriorityClasses   = "scheduling/bootstrap-system-priority-classes"
	hookFairnessConsumer  = "priority-and-fairness-config-consumer"
	hookFairnessProducer  = "priority-and-fairness-config-producer"
	hookKubernetesService = "bootstrap-controller"
	hookServiceCIDRs      = "start-kubernetes-service-cidr-controller"
	hookLocalAvailable    = "apiservice-status-local-available-controller"
	hookRemoteAvailable   = "apiservice-status-remote-available-controller"
	hookRegistration      = "apiservice-registration-controller"
	hookDiscovery         = "apiservice-discovery-controller"
	hookAutoregistration  = "kube-apiserver-autoregistration"
)

// hookNames lists the hooks in kube-apiserver's order. If resource is set, the hook exists only while that resource is
// served.
var hookNames = []struct {
	name     string
	resource schema.GroupVersionResource
}{
	{name: hookCRDControllers}, {name: hookCRDs}, {name: hookNamespaces}, {name: hookTrust},
	{hookIdentity, coordinationv1.SchemeGroupVersion.WithResource("leases")},
	{hookIdentityCollector, coordinationv1.SchemeGroupVersion.WithResource("leases")},
	{name: hookStorage}, {name: hookTokenTracking},
	{hookAddresses, networkingv1.SchemeGroupVersion.WithResource("servicecidrs")},
	{name: hookRoles},
	{hookPriorityClasses, schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")},
	{hookFairnessConsumer, flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas")},
	{hookFairnessProducer, flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas")},
	{name: hookKubernetesService},
	{hookServiceCIDRs, networkingv1.SchemeGroupVersion.WithResource("servicecidrs")},
	{hookLocalAvailable, apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")},
	{hookRemoteAvailable, apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")},
	{name: hookRegistration}, {name: hookDiscovery},
	{hookAutoregistration, apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")},
}

var errNotFinished = errors.New("not finished")

// hooks records which start tasks are done. The zero value is ready to use.
type hooks struct {
	mu     sync.Mutex
	states map[string]error // by hook name; nil means done
}

// done records that the named tasks have ended. err is their error, or nil if they have succeeded.
func (h *hooks) done(err error, names ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.states == nil {
		h.states = map[string]error{}
	}
	for _, name := range names {
		h.states[name] = err
	}
}

// state returns nil if a task has ended with success. It returns the error of a task that has failed, or
// errNotFinished if the task has not ended.
func (h *hooks) state(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err, ended := h.states[name]; ended {
		return err
	}
	return errNotFinished
}

// checks returns a health check for each start task of the server.
func (s *Server) checks() (all []health.Check) {
	for _, hook := range hookNames {
		if hook.name == hookFairnessConsumer && s.config.Fairness.Disabled {
			continue
		}
		if hook.resource.Empty() || s.serves(hook.resource) {
			all = append(all, health.Check{Name: "poststarthook/" + hook.name,
				Run: func() error { return s.hooks.state(hook.name) }})
		}
	}
	return all
}
