// Package admission is what interrupts a write: for now the life cycle of
// namespaces. It knows no verbs and no storage.
package admission

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/object"
)

var namespaces = schema.GroupResource{Resource: "namespaces"}

// CreateIn says whether an object may be created in a namespace. ns is the
// namespace's metadata, nil if there is no such namespace. name is the object's name, or
// its generateName while it has none.
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
	err := apierrors.NewForbidden(gr, name, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", namespace),
		Field:   "metadata.namespace",
	})
	return err
}

// Delete says whether an object may be deleted at all: some namespaces may not.
func Delete(gr schema.GroupResource, name string) error {
	if gr != namespaces {
		return nil
	}
	switch name {
	case metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic:
		return apierrors.NewForbidden(gr, name, errors.New("this namespace may not be deleted"))
	}
	return nil
}
