// Package upstream runs controllers of kube-controller-manager in the server. Each starts with the first object that it
// acts on. Their informers cache only the fields and objects that they need.
package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
)

// Config configures the controllers of kube-controller-manager.
type Config struct {
	// Controllers selects the controllers to run, in the format of kube-controller-manager's flag --controllers: a
	// name, "-name" for a disabled controller, or "*" for all others.
	Controllers []string
	RootCA      []byte                        // PEM of the CA that ConfigMaps and Secrets publish to clients
	Tokens      serviceaccount.TokenGenerator // generates the tokens of Secrets
	Signing     Signing
	// QuotaObjects returns the objects of a resource in a namespace. The result contains every object that was charged
	// to a ResourceQuota before the call.
	QuotaObjects func(schema.GroupVersionResource, string) ([]runtime.Object, error)
	Logger       *slog.Logger
}

// Manager runs controllers of kube-controller-manager. A controller starts when the first object of one of its kinds
// is created. It uses no memory or CPU time before.
type Manager struct {
	Config

	config    *rest.Config
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	// stopInformers stops the informers. It is closed when all controllers have stopped, because upstream's
	// constructors of controllers panic if an informer has stopped.
	stopInformers chan struct{}

	mu              sync.Mutex
	present         map[schema.GroupKind]bool // kinds that have had at least one object
	objectsAppeared chan struct{}             // signals a new kind in present

	kindsChanged chan struct{} // signals a change of a CRD or an APIService
}

// New returns a Manager. Run starts it.
func New(c Config) *Manager {
	return &Manager{
		Config: c, present: map[schema.GroupKind]bool{},
		objectsAppeared: make(chan struct{}, 1), kindsChanged: make(chan struct{}, 1),
	}
}

// Enabled returns the sorted names of the controllers that Config.Controllers selects.
func Enabled(chosen []string) []string {
	return slices.DeleteFunc(Names(), func(name string) bool {
		return !slices.Contains(chosen, name) && (!slices.Contains(chosen, "*") || slices.Contains(chosen, "-"+name))
	})
}

// Observe records which kinds have objects.
func (u *Manager) Observe(ch informer.Change) {
	u.mu.Lock()
	defer u.mu.Unlock()
	id := ch.Kind.GroupKind()
	if id == informer.CRDKind || id == informer.APIServiceKind {
		notify(u.kindsChanged)
	}
	isForeign := func(m *metav1.PartialObjectMetadata) bool { return !isServerManaged(id, m) }
	if u.present[id] || ch.Deleted || !slices.ContainsFunc(ch.Objects(), isForeign) {
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
func (u *Manager) due(started map[string]bool) (names []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	exists := func(id schema.GroupKind) bool { return u.present[id] }
	for _, name := range Enabled(u.Controllers) {
		if !started[name] && slices.ContainsFunc(table[name].triggers, exists) {
			names = append(names, name)
		}
	}
	return names
}

// Run runs the controllers against the API server of config until ctx is done.
func (u *Manager) Run(ctx context.Context, config *rest.Config) (err error) {
	if len(Enabled(u.Controllers)) == 0 {
		return nil
	}
	u.config = asManager(config)
	if u.client, err = kubernetes.NewForConfig(u.config); err != nil {
		return fmt.Errorf("create client for controllers: %w", err)
	}
	u.run(ctx)
	return nil
}

// asManager returns the configuration of a client with the field manager of kube-controller-manager.
func asManager(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.UserAgent = "kube-controller-manager"
	config.WarningHandler = rest.NoWarnings{}
	return config
}

// run starts each controller when it is due. It returns when ctx is done and all controllers have stopped.
func (u *Manager) run(ctx context.Context) {
	u.informers = informers.NewSharedInformerFactoryWithOptions(u.client, 0, informers.WithTransform(withoutOwners),
		informers.WithCustomResyncConfig(map[metav1.Object]time.Duration{&corev1.ResourceQuota{}: quotaResyncPeriod}))
	started := map[string]bool{}
	var running sync.WaitGroup
	u.stopInformers = make(chan struct{})
	defer u.informers.Shutdown()
	defer close(u.stopInformers)
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
func (u *Manager) runController(ctx context.Context, name string) {
	_ = wait.PollUntilContextCancel(ctx, rediscoveryInterval, true, func(ctx context.Context) (bool, error) {
		run, err := table[name].create(ctx, u)
		if err != nil {
			u.Logger.Error("cannot start controller", "name", name, "error", err)
			return false, nil
		}
		u.Logger.Info("controller started", "name", name)
		u.informers.Start(u.stopInformers)
		run(ctx)
		return true, nil
	})
}
