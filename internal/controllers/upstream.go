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

// UpstreamConfig says which controllers of kube-controller-manager's run, and with what.
type UpstreamConfig struct {
	// Controllers are those that run, as its flag of this name has them: names, "-name" for one that does not run, "*" for all that
	// are not named. Loops run as well, but for those with "-name", or with "-*" those that are not named.
	Controllers []string
	RootCA      []byte                        // that ConfigMaps and Secrets tell clients, PEM
	Tokens      serviceaccount.TokenGenerator // for Secrets
	Signing     Signing
	// QuotaObjects are the objects of a resource in a namespace, with none missing that a ResourceQuota has been charged for.
	QuotaObjects func(schema.GroupVersionResource, string) ([]runtime.Object, error)
	// NamespaceDelay is the time from the deletion of a namespace to the first write of the namespace controller, which is one of Loops.
	NamespaceDelay time.Duration
	// Dangling has the condition Dangling of FlowSchemas written.
	Dangling bool
	// LeaderElection has them run in one process at a time, of those that serve the same objects.
	LeaderElection bool
	Logger         *slog.Logger
}

// Upstream are controllers of kube-controller-manager's. Each begins with the first object that it is about, and so costs nothing
// where there is none.
type Upstream struct {
	UpstreamConfig

	config    *rest.Config
	client    kubernetes.Interface
	informers informers.SharedInformerFactory

	mu              sync.Mutex
	present         map[schema.GroupKind]bool // kinds of which there has been an object
	objectsAppeared chan struct{}             // receives when there is another

	kindsChanged chan struct{} // receives when a CRD or an APIService has changed
}

// NewUpstream returns controllers that do not run yet.
func NewUpstream(c UpstreamConfig) *Upstream {
	return &Upstream{UpstreamConfig: c, present: map[schema.GroupKind]bool{}, objectsAppeared: make(chan struct{}, 1), kindsChanged: make(chan struct{}, 1)}
}

// CheckControllers refuses a name that no controller has.
func CheckControllers(names []string) error {
	for _, c := range names {
		if name := strings.TrimPrefix(c, "-"); name != "*" && upstreamControllers[name].create == nil && !slices.Contains(Loops, name) {
			return fmt.Errorf("%q is not in the list of known controllers", name)
		}
	}
	return nil
}

func (c UpstreamConfig) upstreamEnabled(name string) bool {
	return slices.Contains(c.Controllers, name) || slices.Contains(c.Controllers, "*") && !slices.Contains(c.Controllers, "-"+name)
}

// trellisEnabled says whether one of Loops runs: a kube-controller-manager beside the server may have its own.
func (c UpstreamConfig) trellisEnabled(name string) bool {
	return slices.Contains(c.Controllers, name) || !slices.Contains(c.Controllers, "-"+name) && !slices.Contains(c.Controllers, "-*")
}

// observe is told of the objects that there are.
func (u *Upstream) observe(ch change) {
	u.mu.Lock()
	defer u.mu.Unlock()
	id := ch.kind.groupKind()
	if id == crdKind || id == apiServiceKind {
		notify(u.kindsChanged)
	}
	if u.present[id] || ch.deleted || !slices.ContainsFunc(ch.objects(), func(m *metav1.PartialObjectMetadata) bool { return !isServerManaged(id, m) }) {
		return
	}
	u.present[id] = true
	notify(u.objectsAppeared)
}

// notify sends to a channel with a buffer, unless there is something in it.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// isServerManaged is true of the Service kubernetes and its endpoints, which the server looks after by itself.
func isServerManaged(id schema.GroupKind, m *metav1.PartialObjectMetadata) bool {
	return (id == serviceKind || id == endpointsKind) && m.Namespace == metav1.NamespaceDefault && m.Name == "kubernetes"
}

// due are the names of those that have something to do, but for those in begun.
func (u *Upstream) due(begun map[string]bool) (names []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(upstreamControllers)) {
		if !begun[name] && u.upstreamEnabled(name) && slices.ContainsFunc(upstreamControllers[name].triggers, func(id schema.GroupKind) bool { return u.present[id] }) {
			names = append(names, name)
		}
	}
	return names
}

// Run runs the controllers against the API server of config until ctx is done.
func (u *Upstream) Run(ctx context.Context, config *rest.Config) (err error) {
	if !slices.ContainsFunc(Controllers(), u.upstreamEnabled) {
		return nil
	}
	u.config = rest.CopyConfig(config)
	u.config.UserAgent = "kube-controller-manager" // whose fields they are
	u.config.WarningHandler = rest.NoWarnings{}
	if u.client, err = kubernetes.NewForConfig(u.config); err != nil {
		return fmt.Errorf("client of controllers: %w", err)
	}
	if u.LeaderElection {
		return u.runWhileLeader(ctx, u.run)
	}
	u.run(ctx)
	return nil
}

// run begins each controller when it is due. It returns when ctx is done and all have ended.
func (u *Upstream) run(ctx context.Context) {
	u.informers = informers.NewSharedInformerFactoryWithOptions(u.client, 0, informers.WithTransform(withoutOwners),
		informers.WithCustomResyncConfig(map[metav1.Object]time.Duration{&corev1.ResourceQuota{}: quotaResyncPeriod}))
	begun := map[string]bool{}
	var running sync.WaitGroup
	defer u.informers.Shutdown()
	defer running.Wait()
	for {
		for _, name := range u.due(begun) {
			begun[name] = true
			running.Go(func() { u.runController(ctx, name) })
		}
		select {
		case <-u.objectsAppeared:
		case <-ctx.Done():
			return
		}
	}
}

// runController runs one controller. One that cannot begin tries again.
func (u *Upstream) runController(ctx context.Context, name string) {
	for ; ctx.Err() == nil; sleep(ctx, rediscoveryInterval) {
		run, err := upstreamControllers[name].create(ctx, u)
		if err == nil {
			u.Logger.Info("a controller begins", "name", name)
			u.informers.Start(ctx.Done())
			run(ctx)
			return
		}
		u.Logger.Error("a controller does not run", "name", name, "error", err)
	}
}
