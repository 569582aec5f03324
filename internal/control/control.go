// Package control is the loops that finish what a request began: the deletion
// of namespaces, of a CRD's objects, of dependents. Each is a client of the API
// and may run in the server's process or in one of its own. It knows no engine and
// no storage.
package control

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// clients are what the loops reach the API server with.
type clients struct {
	discovery discovery.DiscoveryInterface
	dynamic   dynamic.Interface
	metadata  metadata.Interface
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
	return &clients{disc, dyn, meta, feed}, nil
}

// Run runs all loops against the API server of config until ctx is done, and
// returns when the last has stopped. The error is one of configuration; a loop
// that meets an error of the API tries again by itself.
//
// What feed does not have, or everything if it is nil, is watched through the API. autoMigrate has objects
// migrated by itself when the storage version of their CRD has changed. migrating are the names of the CRDs that say at the start
// that they are being migrated, by a process that may not have told them the end.
//
// services is told of changes of APIServices, and tells of groups that other servers serve; upstream is told of what there is.
func Run(ctx context.Context, config *rest.Config, feed Feed, autoMigrate bool, migrating []string, services *APIServices, upstream *Upstream) error {
	c, err := newClients(config, feed)
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.Background().WithName("control"))
	kinds := newKinds(c)
	collector := newCollector(c, kinds)
	namespaces := newNamespaces(c)
	definitions := newDefinitions(c)
	migrations := newMigrations(c, autoMigrate, migrating)
	services.registered = kinds.mark
	kinds.onChange = func(ch change) {
		services.observe(ch)
		upstream.observe(ch)
		collector.observe(ch)
		namespaces.observe(ch)
		definitions.observe(ch)
		migrations.observe(ch)
	}

	var running sync.WaitGroup
	for _, run := range []func(context.Context){kinds.run, collector.run, namespaces.run, definitions.run, migrations.run} {
		running.Go(func() { run(ctx) })
	}
	running.Wait()
	return nil
}
