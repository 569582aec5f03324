// Package manifests applies the manifests in files to an API server. It applies
// CustomResourceDefinitions first. The package is a client of the API and must not import the server's packages.
package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/trellis-k8s/trellis/internal/controllers/report"
)

const (
	// manager is the field manager of Apply.
	manager = "trellis"
	// establishTimeout is the maximum time until all CRDs are established.
	establishTimeout = 30 * time.Second
)

var (
	crdKind = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	crds    = schema.GroupVersionResource{Group: crdKind.Group, Version: "v1", Resource: "customresourcedefinitions"}
)

// applier holds the state of one call of Apply.
type applier struct {
	client dynamic.Interface
	mapper meta.ResettableRESTMapper
	out    io.Writer
}

// Apply applies all manifests in paths, which are files or directories. Of a directory it
// reads the .yaml, .yml and .json files in the order of their names. It uses server-side
// apply and forces conflicts. CustomResourceDefinitions are applied first, and Apply waits
// until they are established. Namespaces are next, then the other objects in the given
// order. Apply writes a line for each object to out, and returns the first error.
func Apply(ctx context.Context, config *rest.Config, paths []string, out io.Writer) error {
	objects, err := load(paths)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client to apply manifests: %w", err)
	}
	disc, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("create discovery client to apply manifests: %w", err)
	}
	a := &applier{client, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disc)), out}
	definitions := sortForApply(objects)
	for _, o := range objects[:definitions] {
		if err := a.apply(ctx, o); err != nil {
			return err
		}
	}
	if err := a.awaitEstablished(ctx, objects[:definitions]); err != nil {
		return err
	}
	a.mapper.Reset() // the cached discovery lacks the new kinds
	for _, o := range objects[definitions:] {
		if err := a.apply(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) apply(ctx context.Context, o *manifest) error {
	mapping, err := a.mapper.RESTMapping(o.kind.GroupKind(), o.kind.Version)
	if err != nil {
		return fmt.Errorf("%s: %w", o.source, err)
	}
	var target dynamic.ResourceInterface = a.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		target = a.client.Resource(mapping.Resource).Namespace(cmp.Or(o.namespace, metav1.NamespaceDefault))
	}
	force := true
	options := metav1.PatchOptions{FieldManager: manager, Force: &force}
	if _, err := target.Patch(ctx, o.name, types.ApplyPatchType, o.json, options); err != nil {
		return fmt.Errorf("%s: apply %s %q: %w", o.source, o.kind.Kind, o.name, err)
	}
	o.json = nil
	fmt.Fprintf(a.out, "%s/%s serverside-applied\n", mapping.Resource.GroupResource(), o.name)
	return nil
}

func (a *applier) awaitEstablished(ctx context.Context, definitions []*manifest) error {
	ctx, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	for _, o := range definitions {
		if err := a.waitEstablished(ctx, o.name); err != nil {
			return fmt.Errorf("%s: CustomResourceDefinition %q: %w", o.source, o.name, err)
		}
	}
	return nil
}

// waitEstablished blocks until the CRD is established. When ctx is done, it returns an error with the last known
// reason.
func (a *applier) waitEstablished(ctx context.Context, name string) error {
	w, err := a.client.Resource(crds).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	last := errors.New("timed out waiting until it is established")
	for event := range w.ResultChan() {
		o, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type == watch.Bookmark {
			continue
		}
		conditions := report.Conditions(o)
		if meta.IsStatusConditionTrue(conditions, "Established") {
			return nil
		}
		for _, kind := range []string{"Established", "NamesAccepted"} {
			c := meta.FindStatusCondition(conditions, kind)
			if c != nil && c.Status != metav1.ConditionTrue && c.Message != "" {
				last = errors.New(c.Message)
			}
		}
	}
	return last
}
