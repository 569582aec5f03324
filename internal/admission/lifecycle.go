package admission

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// namespaces is the resource of Namespaces.
var namespaces = schema.GroupResource{Resource: "namespaces"}

var errTerminating = errors.New("create not allowed while custom resource definition is terminating")

// Lifecycle is upstream's plugin NamespaceLifecycle. It rejects the creation of objects in a missing or terminating
// namespace, and of objects whose CustomResourceDefinition is terminating. It also rejects the deletion of system
// namespaces.
type Lifecycle struct {
	// Namespaces returns the kind Namespace, or nil if the server does not serve it.
	Namespaces func() *resource.Definition
}

// Name implements Plugin.
func (Lifecycle) Name() string { return "NamespaceLifecycle" }

// Handles implements Plugin.
func (Lifecycle) Handles(*Request) bool { return true }

// Admit implements Plugin.
func (l Lifecycle) Admit(ctx context.Context, r *Request) error {
	gr := r.Resource.GroupResource()
	if r.Operation == Delete {
		return deletable(gr, r.Name)
	}
	if r.Operation == Create && r.Version.Definition.Terminating {
		return apierrors.NewForbidden(gr, r.ObjectName(ctx), errTerminating)
	}
	if d := r.Version.Definition; !d.Namespaced || r.Operation != Create || d.Behavior.Review != nil {
		return nil // the namespace of an existing object exists, and reviews are not stored
	}
	kind := l.Namespaces()
	if kind == nil {
		return nil
	}
	ns := r.Read(kind, "", r.Namespace)
	if ns != nil && ns.DeletionTimestamp == "" {
		return nil
	}
	return CreateIn(r.Namespace, ns, gr, r.ObjectName(ctx))
}

// ObjectName returns the name of the object for error messages. If the object has no name yet, it returns the
// generateName.
func (r *Request) ObjectName(ctx context.Context) string {
	if r.Name != "" {
		return r.Name
	}
	t, err := r.New(ctx, r.Version)
	if err != nil {
		return ""
	}
	return object.String(object.Metadata(t), "generateName")
}

// Validate implements Plugin.
func (Lifecycle) Validate(context.Context, *Request) error { return nil }

// CreateIn returns an error if no object may be created in a namespace. ns is the namespace's metadata, or nil if the
// namespace does not exist.
func CreateIn(namespace string, ns *object.Meta, gr schema.GroupResource, name string) error {
	if ns == nil {
		return apierrors.NewNotFound(namespaces, namespace)
	}
	if ns.DeletionTimestamp == "" {
		return nil
	}
	if name == "" {
		name = "Unknown"
	}
	err := apierrors.NewForbidden(gr, name,
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", namespace),
		Field:   "metadata.namespace",
	})
	return err
}

// deletable returns an error for system namespaces, which must not be deleted.
func deletable(gr schema.GroupResource, name string) error {
	if gr != namespaces {
		return nil
	}
	switch name {
	case metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic:
		return apierrors.NewForbidden(gr, name, errors.New("this namespace may not be deleted"))
	}
	return nil
}
