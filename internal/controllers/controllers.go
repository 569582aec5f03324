// Package controllers is the loops that finish what a request began: the deletion
// of namespaces, of a CRD's objects, of dependents. Each is a client of the API
// and may run in the server's process or in one of its own. It knows no engine and
// no storage.
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

// clients are what the loops reach the API server with.
type clients struct {
	discovery discovery.DiscoveryInterface
	dynamic   dynamic.Interface
	metadata  metadata.Interface
	core      typedcorev1.CoreV1Interface
	feed      Feed // may be nil
}

// Feed tells of the objects that a server in this process stores, as a list and a watch of their metadata would, for far
// less than those cost. It has the functions called, by one goroutine, until stop is called: listed first, and whenever changes
// have been missed, with all objects as of a revision; changed for each change since. It returns false for a kind that it does
// not have.
type Feed func(resource schema.GroupVersionResource, listed func(objects []*metav1.PartialObjectMetadata, revision int64),
	changed func(object *metav1.PartialObjectMetadata, deleted bool)) (stop func(), ok bool)

func newClients(config *rest.Config, feed Feed) (*clients, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the loops pace themselves by their queues
	config.WarningHandler = rest.NoWarnings{}
	disc, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("discovery client: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("dynamic client: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("metadata client: %w", err)
	}
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("core client: %w", err)
	}
	return &clients{disc, dyn, meta, core, feed}, nil
}

// Run runs all loops against the API server of config until ctx is done, and
// returns when the last has stopped. The error is one of configuration; a loop
// that meets an error of the API tries again by itself.
//
// What feed does not have, or everything if it is nil, is watched through the API. autoMigrate has objects
// migrated by itself when the storage version of their CRD has changed. migrating are the names of the CRDs that say at the start
// that they are being migrated, by a process that may not have told them the end.
//
// services is told of changes of APIServices, and tells of groups that other servers serve; upstream is told of what there is, and
// says which of Loops run.
func Run(ctx context.Context, config *rest.Config, feed Feed, autoMigrate bool, migrating []string, services *APIServices, upstream *Upstream) error {
	c, err := newClients(config, feed)
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.Background().WithName("control"))
	kinds := newKindWatchers(c)
	namespaces, loops := newNamespaceController(c, services), []controller{newCRDController(c)}
	namespaces.delay = upstream.NamespaceDelay
	for name, l := range map[string]controller{
		known.GarbageCollectorController:       newGarbageCollector(c, kinds),
		known.NamespaceController:              namespaces,
		known.StorageVersionMigratorController: newMigrationController(c, autoMigrate, migrating),
	} {
		if upstream.trellisEnabled(name) {
			loops = append(loops, l)
		}
	}
	if upstream.Dangling {
		d, err := newDanglingController(config)
		if err != nil {
			return err
		}
		loops = append(loops, d)
	}
	services.onRegistered = kinds.markDirty
	kinds.onChange = func(ch change) {
		services.observe(ch)
		upstream.observe(ch)
		for _, l := range loops {
			l.observe(ch)
		}
	}

	var running sync.WaitGroup
	running.Go(func() { kinds.run(ctx) })
	for _, l := range loops {
		running.Go(func() { l.run(ctx) })
	}
	running.Wait()
	return nil
}

// controller is told of what changes, and does what follows of it.
type controller interface {
	observe(change)
	run(context.Context)
}

// Loops are those of this package that kube-controller-manager has as well, by its names for them.
var Loops = []string{known.GarbageCollectorController, known.NamespaceController, known.StorageVersionMigratorController}
