// Package controllers starts the server's controllers. They finish work that a request starts, such as the deletion of
// a namespace's content, of a CRD's objects, or of dependents. Each controller is a client of the API, so it can run in
// the server's process or in a separate one. The controllers must not import the engine or the storage.
package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	known "k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"

	"github.com/trellis-k8s/trellis/internal/controllers/apiservice"
	"github.com/trellis-k8s/trellis/internal/controllers/bootstrap"
	"github.com/trellis-k8s/trellis/internal/controllers/crd"
	"github.com/trellis-k8s/trellis/internal/controllers/garbage"
	"github.com/trellis-k8s/trellis/internal/controllers/informer"
	"github.com/trellis-k8s/trellis/internal/controllers/migration"
	"github.com/trellis-k8s/trellis/internal/controllers/namespace"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
)

// Config configures the controllers.
type Config struct {
	Client kubernetes.Interface
	// Feed sends the changes of objects. The objects of other resources are watched through the API.
	Feed informer.Feed
	// Upstream selects and configures the controllers of kube-controller-manager. TrellisControllers run even if
	// Upstream.Controllers does not name them. "-name" disables one of them, and "-*" disables all that are not named.
	Upstream     upstream.Config
	APIServices  *apiservice.Controller
	Reachability *crd.Reachability
	// Trust is published to extension API servers, unless it is nil.
	Trust *clusterauthenticationtrust.ClusterAuthenticationInfo
	// ServiceCIDRs are the configured ranges of Services. If it is empty, no controller of ServiceCIDRs runs.
	ServiceCIDRs []netip.Prefix
	// Dangling enables the controller that writes the condition Dangling of FlowSchemas.
	Dangling bool
	// NamespaceDelay is the time between the deletion of a namespace and the first write of the namespace controller.
	NamespaceDelay time.Duration
	// AutoMigrate and the result of Migrating are the fields of migration.Config.
	AutoMigrate bool
	Migrating   func() []string
	// LeaderElection is set if several processes serve the same objects. Only one of them then runs the controllers of
	// kube-controller-manager and TrellisControllers.
	LeaderElection bool
}

// observer receives the changes of all objects.
type observer interface{ Observe(informer.Change) }

// controller is a controller that does not depend on upstream's informers.
type controller interface {
	observer
	Run(context.Context)
}

// Run runs the controllers against the API server of config until ctx is done, and returns when the last one has
// stopped. It returns an error only for an invalid configuration. A controller retries after an error of the API.
func Run(ctx context.Context, config *rest.Config, c Config) error {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the queues limit the rate of the controllers
	config.WarningHandler = rest.NoWarnings{}
	r := runner{Config: c, config: config}
	var err error
	if r.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return fmt.Errorf("create dynamic client: %w", err)
	}
	if r.metadata, err = metadata.NewForConfig(config); err != nil {
		return fmt.Errorf("create metadata client: %w", err)
	}
	services, err := apiregistration.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client for APIServices: %w", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.runObservers(ctx) })
	running.Go(func() { c.APIServices.Run(ctx, services) })
	running.Go(func() { c.Reachability.Run(ctx, r.dynamic, c.Client.CoreV1()) })
	running.Go(func() { upstream.RunTokenTracking(ctx, c.Client) })
	if c.Trust != nil {
		running.Go(func() { apiservice.RunTrust(ctx, c.Client, *c.Trust) })
	}
	if len(c.ServiceCIDRs) > 0 {
		running.Go(func() { upstream.RunServiceCIDRs(ctx, c.Client, c.ServiceCIDRs) })
	}
	return nil
}

// runner runs the controllers that observe changes.
type runner struct {
	Config
	config   *rest.Config
	dynamic  dynamic.Interface
	metadata metadata.Interface
}

// runObservers runs the controllers that observe changes until ctx is done. With leader election, only the leader runs
// those that kube-controller-manager has, too.
func (r *runner) runObservers(ctx context.Context) {
	follow := func(ctx context.Context) { r.run(ctx, r.replicated) }
	lead := func(ctx context.Context) { r.run(ctx, r.replicated, r.elected) }
	switch {
	case !r.LeaderElection:
		lead(ctx)
	case len(Running(r.Upstream.Controllers)) == len(Running([]string{"-*"})):
		follow(ctx) // a kube-controller-manager may need the Lease
	default:
		if err := upstream.RunElected(ctx, r.config, follow, lead); err != nil {
			r.Upstream.Logger.Error("cannot run the controllers", "error", err)
		}
	}
}

// run creates controllers and an Informer for them, and runs them until ctx is done.
func (r *runner) run(ctx context.Context, create ...func(*informer.Informer) []controller) {
	ctx = klog.NewContext(ctx, klog.Background().WithName("controllers"))
	observers, controllers := []observer{r.APIServices}, []controller{}
	kinds := informer.New(r.Client.Discovery(), r.metadata, r.Feed, func(ch informer.Change) {
		for _, o := range observers {
			o.Observe(ch)
		}
	})
	for _, f := range create {
		controllers = append(controllers, f(kinds)...)
	}
	var running sync.WaitGroup
	defer running.Wait()
	for _, ctrl := range controllers {
		observers = append(observers, ctrl)
		running.Go(func() { ctrl.Run(ctx) })
	}
	kinds.Run(ctx)
}

// replicated returns the controllers that each server runs, like those of kube-apiserver.
func (r *runner) replicated(*informer.Informer) []controller {
	all := []controller{crd.New(r.dynamic, r.metadata, r.Client.Discovery().RESTClient())}
	if r.Dangling {
		all = append(all, bootstrap.NewDangling(r.Client.FlowcontrolV1()))
	}
	return all
}

// elected returns the enabled controllers of kube-controller-manager.
func (r *runner) elected(kinds *informer.Informer) []controller {
	core, discovery := r.Client.CoreV1(), r.Client.Discovery()
	all := []controller{manager{upstream.New(r.Upstream), r.config}}
	for name, ctrl := range map[string]controller{
		known.GarbageCollectorController: garbage.New(core, r.metadata, kinds),
		known.NamespaceController: namespace.New(namespace.Config{
			Discovery: discovery, Dynamic: r.dynamic, Metadata: r.metadata, Events: core,
			HasNoNamespacedObjects: r.APIServices.HasNoNamespacedObjects, Delay: r.NamespaceDelay,
		}),
		known.StorageVersionMigratorController: migration.New(migration.Config{
			Discovery: discovery, Dynamic: r.dynamic, Metadata: r.metadata, Automatic: r.AutoMigrate,
			Migrating: r.Migrating(),
		}),
	} {
		if trellisEnabled(r.Upstream.Controllers, name) {
			all = append(all, ctrl)
		}
	}
	return all
}

// manager is a controller that runs the controllers of package upstream.
type manager struct {
	*upstream.Manager
	config *rest.Config
}

// Run implements controller.
func (m manager) Run(ctx context.Context) {
	if err := m.Manager.Run(upstream.WithLogger(ctx, m.Logger), m.config); err != nil {
		m.Logger.Error("cannot run a controller", "error", err)
	}
}

// TrellisControllers are the names of the controllers that replace a controller of kube-controller-manager with the
// same name.
var TrellisControllers = []string{
	known.GarbageCollectorController, known.NamespaceController, known.StorageVersionMigratorController,
}

// CheckControllers returns an error if chosen contains the name of an unknown controller.
func CheckControllers(chosen []string) error {
	all := append(upstream.Names(), TrellisControllers...)
	for _, c := range chosen {
		if name := strings.TrimPrefix(c, "-"); name != "*" && !slices.Contains(all, name) {
			return fmt.Errorf("%q is not in the list of known controllers", name)
		}
	}
	return nil
}

// Running returns the sorted names of the controllers that run if upstream.Config.Controllers is chosen.
func Running(chosen []string) []string {
	names := append(upstream.Enabled(chosen), known.ServiceCIDRController) // the latter cannot be disabled
	for _, name := range TrellisControllers {
		if trellisEnabled(chosen, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// trellisEnabled reports whether one of TrellisControllers is enabled. If it is disabled, a kube-controller-manager
// that connects to the server may run its own implementation.
func trellisEnabled(chosen []string, name string) bool {
	return slices.Contains(chosen, name) || !slices.Contains(chosen, "-"+name) && !slices.Contains(chosen, "-*")
}
