package controllers

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// UpstreamConfig configures the controllers of kube-controller-manager.
type UpstreamConfig struct {
	// Controllers selects the controllers to run, in the format of kube-controller-manager's flag --controllers: a
	// name, "-name" for a disabled controller, or "*" for all others. TrellisControllers run even if they are not
	// named. "-name" disables one of them, and "-*" disables all that are not named.
	Controllers []string
	RootCA      []byte                        // PEM of the CA that ConfigMaps and Secrets publish to clients
	Tokens      serviceaccount.TokenGenerator // generates the tokens of Secrets
	Signing     Signing
	// QuotaObjects returns the objects of a resource in a namespace. The result contains every object that was charged
	// to a ResourceQuota before the call.
	QuotaObjects func(schema.GroupVersionResource, string) ([]runtime.Object, error)
	// NamespaceDelay is the time between the deletion of a namespace and the first write of the namespace controller.
	NamespaceDelay time.Duration
	// Dangling enables the controller that writes the condition Dangling of FlowSchemas.
	Dangling bool
	// LeaderElection is set if several processes serve the same objects. Only one of them then runs the controllers.
	LeaderElection bool
	Logger         *slog.Logger
}

// Upstream runs controllers of kube-controller-manager. A controller starts when the first object of one of its kinds
// is created. It uses no memory or CPU time before.
type Upstream struct {
	UpstreamConfig

	config    *rest.Config
	client    kubernetes.Interface
	informers informers.SharedInformerFactory

	mu              sync.Mutex
	present         map[schema.GroupKind]bool // kinds that have had at least one object
	objectsAppeared chan struct{}             // signals a new kind in present

	kindsChanged chan struct{} // signals a change of a CRD or an APIService
}

// NewUpstream returns an Upstream with the given configuration. Run starts it.
func NewUpstream(c UpstreamConfig) *Upstream {
	return &Upstream{
		UpstreamConfig: c, present: map[schema.GroupKind]bool{},
		objectsAppeared: make(chan struct{}, 1), kindsChanged: make(chan struct{}, 1),
	}
}

// CheckControllers returns an error if names contains the name of an unknown controller.
func CheckControllers(names []string) error {
	for _, c := range names {
		name := strings.TrimPrefix(c, "-")
		if name != "*" && upstreamControllers[name].create == nil && !slices.Contains(TrellisControllers, name) {
			return fmt.Errorf("%q is not in the list of known controllers", name)
		}
	}
	return nil
}

// upstreamEnabled reports whether the controller of kube-controller-manager with this name is enabled.
func (c UpstreamConfig) upstreamEnabled(name string) bool {
	return slices.Contains(c.Controllers, name) ||
		slices.Contains(c.Controllers, "*") && !slices.Contains(c.Controllers, "-"+name)
}

// trellisEnabled reports whether one of TrellisControllers is enabled. If it is disabled, a kube-controller-manager
// that connects to the server may run its own implementation.
func (c UpstreamConfig) trellisEnabled(name string) bool {
	return slices.Contains(c.Controllers, name) ||
		!slices.Contains(c.Controllers, "-"+name) && !slices.Contains(c.Controllers, "-*")
}

// observe records which kinds have objects.
func (u *Upstream) observe(ch change) {
	u.mu.Lock()
	defer u.mu.Unlock()
	id := ch.kind.groupKind()
	if id == crdKind || id == apiServiceKind {
		notify(u.kindsChanged)
	}
	isForeign := func(m *metav1.PartialObjectMetadata) bool { return !isServerManaged(id, m) }
	if u.present[id] || ch.deleted || !slices.ContainsFunc(ch.objects(), isForeign) {
		return
	}
	u.present[id] = true
	notify(u.objectsAppeared)
}

// notify sends to a channel, unless the channel's buffer is full.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// isServerManaged reports whether m is the Service kubernetes or its Endpoints. The server manages these itself.
func isServerManaged(id schema.GroupKind, m *metav1.PartialObjectMetadata) bool {
	return (id == serviceKind || id == endpointsKind) &&
		m.Namespace == metav1.NamespaceDefault && m.Name == "kubernetes"
}

// due returns the names of the enabled controllers to start. An object of one of their kinds has existed, and they have
// not started yet.
func (u *Upstream) due(started map[string]bool) (names []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	exists := func(id schema.GroupKind) bool { return u.present[id] }
	for _, name := range slices.Sorted(maps.Keys(upstreamControllers)) {
		if !started[name] && u.upstreamEnabled(name) &&
			slices.ContainsFunc(upstreamControllers[name].triggers, exists) {
			names = append(names, name)
		}
	}
	return names
}

// Run runs the controllers against the API server of config until ctx is done.
func (u *Upstream) Run(ctx context.Context, config *rest.Config) (err error) {
	if !slices.ContainsFunc(UpstreamControllers(), u.upstreamEnabled) {
		return nil
	}
	u.config = rest.CopyConfig(config)
	u.config.UserAgent = "kube-controller-manager" // the field manager
	u.config.WarningHandler = rest.NoWarnings{}
	if u.client, err = kubernetes.NewForConfig(u.config); err != nil {
		return fmt.Errorf("create client for controllers: %w", err)
	}
	if u.LeaderElection {
		return u.runWhileLeader(ctx, u.run)
	}
	u.run(ctx)
	return nil
}

// run starts each controller when it is due. It returns when ctx is done and all controllers have stopped.
func (u *Upstream) run(ctx context.Context) {
	u.informers = informers.NewSharedInformerFactoryWithOptions(u.client, 0, informers.WithTransform(withoutOwners),
		informers.WithCustomResyncConfig(map[metav1.Object]time.Duration{&corev1.ResourceQuota{}: quotaResyncPeriod}))
	started := map[string]bool{}
	var running sync.WaitGroup
	defer u.informers.Shutdown()
	defer running.Wait()
	for {
		for _, name := range u.due(started) {
			started[name] = true
			running.Go(func() { u.runController(ctx, name) })
		}
		select {
		case <-u.objectsAppeared:
		case <-ctx.Done():
			return
		}
	}
}

// runController runs a controller until ctx is done. If the controller cannot be created, it tries again later.
func (u *Upstream) runController(ctx context.Context, name string) {
	for ; ctx.Err() == nil; sleep(ctx, rediscoveryInterval) {
		run, err := upstreamControllers[name].create(ctx, u)
		if err == nil {
			u.Logger.Info("controller started", "name", name)
			u.informers.Start(ctx.Done())
			run(ctx)
			return
		}
		u.Logger.Error("cannot start controller", "name", name, "error", err)
	}
}
