// Package controllers contains the server's controllers. They finish work that a request
// starts, such as the deletion of a namespace's content, of a CRD's objects, or of dependents.
// Each controller is a client of the API, so it can run in the server's process or in
// a separate one. The package must not import the engine or the storage.
package controllers

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	known "k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

// clients holds the API clients of the controllers.
type clients struct {
	discovery discovery.DiscoveryInterface
	dynamic   dynamic.Interface
	metadata  metadata.Interface
	core      typedcorev1.CoreV1Interface
	feed      Feed // nil: every kind is watched through the API
}

// Feed subscribes to the metadata of the objects that a server in this process stores. A Feed costs far less than a
// list and a watch through the API. One goroutine calls the functions listed and changed until stop is called. It
// calls listed first, with all objects at a revision, and again if it has missed changes. It calls changed for each
// later change. Feed returns false for a resource that the server does not store.
type Feed func(
	resource schema.GroupVersionResource,
	listed func(objects []*metav1.PartialObjectMetadata, revision int64),
	changed func(object *metav1.PartialObjectMetadata, deleted bool),
) (stop func(), ok bool)

func newClients(config *rest.Config, feed Feed) (*clients, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the queues limit the rate of the controllers
	config.WarningHandler = rest.NoWarnings{}
	disc, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create discovery client: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create dynamic client: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create metadata client: %w", err)
	}
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create core client: %w", err)
	}
	return &clients{disc, dyn, meta, core, feed}, nil
}

// Run runs the controllers against the API server of config until ctx is done, and returns when the last one has
// stopped. It returns an error only for an invalid configuration. A controller retries after an error of the API.
//
// Resources that feed does not have are watched through the API. A nil feed has no resources. If autoMigrate is set,
// objects are migrated automatically after the storage version of their CRD has changed. migrating lists the CRDs
// whose condition reports a running migration at the start. The process that set the condition may have stopped before
// the end of the migration.
//
// services receives the changes of APIServices, and triggers discovery of the groups that other servers serve.
// upstream receives the changes of all objects, and specifies which of TrellisControllers run.
func Run(
	ctx context.Context, config *rest.Config, feed Feed, autoMigrate bool, migrating []string,
	services *APIServices, upstream *Upstream,
) error {
	c, err := newClients(config, feed)
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.Background().WithName("controllers"))
	kinds := newKindWatchers(c)
	namespaces, all := newNamespaceController(c, services), []controller{newCRDController(c)}
	namespaces.delay = upstream.NamespaceDelay
	for name, ctrl := range map[string]controller{
		known.GarbageCollectorController:       newGarbageCollector(c, kinds),
		known.NamespaceController:              namespaces,
		known.StorageVersionMigratorController: newMigrationController(c, autoMigrate, migrating),
	} {
		if upstream.trellisEnabled(name) {
			all = append(all, ctrl)
		}
	}
	if upstream.Dangling {
		d, err := newDanglingController(config)
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	services.onRegistered = kinds.markDirty
	kinds.onChange = func(ch change) {
		services.observe(ch)
		upstream.observe(ch)
		for _, ctrl := range all {
			ctrl.observe(ch)
		}
	}

	var running sync.WaitGroup
	running.Go(func() { kinds.run(ctx) })
	for _, ctrl := range all {
		running.Go(func() { ctrl.run(ctx) })
	}
	running.Wait()
	return nil
}

// controller is one of the controllers of this package. observe receives the changes of all objects.
type controller interface {
	observe(change)
	run(context.Context)
}

// TrellisControllers are the names of the controllers of this package that replace a controller of
// kube-controller-manager with the same name.
var TrellisControllers = []string{
	known.GarbageCollectorController, known.NamespaceController, known.StorageVersionMigratorController,
}
