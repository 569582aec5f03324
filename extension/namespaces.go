package extension

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
)

var namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// namespaces is an admission plugin that rejects creations in namespaces that do not exist or are terminating on the
// main server. It reads namespaces from a watch cache. It requests namespaces that are not in the cache from the main
// server.
type namespaces struct {
	client metadata.Interface
	watch  cache.SharedIndexInformer
	known  cache.GenericLister
}

func newNamespaces(c *rest.Config) (*namespaces, error) {
	client, err := metadata.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("client for namespaces: %w", err)
	}
	of := metadatainformer.NewFilteredMetadataInformer(client, namespaceResource, "", 0, cache.Indexers{}, nil)
	return &namespaces{client: client, watch: of.Informer(), known: of.Lister()}, nil
}

// Name implements admission.Plugin.
func (*namespaces) Name() string { return "NamespaceExists" }

// Handles implements admission.Plugin.
func (*namespaces) Handles(r *admission.Request) bool { return r.Operation == admission.Create }

// Admit implements admission.Plugin.
func (n *namespaces) Admit(ctx context.Context, r *admission.Request) error {
	if !r.Version.Definition.Namespaced {
		return nil
	}
	found, err := n.find(ctx, r.Namespace)
	switch {
	case apierrors.IsNotFound(err):
		return admission.CreateIn(r.Namespace, nil, r.Resource.GroupResource(), r.ObjectName(ctx))
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("get namespace %s from the main server: %w", r.Namespace, err))
	}
	meta := &object.Meta{}
	if at := found.GetDeletionTimestamp(); at != nil {
		meta.DeletionTimestamp = at.String()
	}
	return admission.CreateIn(r.Namespace, meta, r.Resource.GroupResource(), r.ObjectName(ctx))
}

func (n *namespaces) find(ctx context.Context, name string) (metav1.Object, error) {
	if known, err := n.known.Get(name); err == nil {
		if found, ok := known.(metav1.Object); ok {
			return found, nil
		}
	}
	return n.client.Resource(namespaceResource).Get(ctx, name, metav1.GetOptions{})
}

// Validate implements admission.Plugin.
func (*namespaces) Validate(context.Context, *admission.Request) error { return nil }

// ready returns an error until the watch cache contains all namespaces.
func (n *namespaces) ready() error {
	if !n.watch.HasSynced() {
		return fmt.Errorf("the namespaces of the main server are not loaded yet")
	}
	return nil
}
