package builtin

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const finalize = "finalize" // the subresource that alone writes spec.finalizers

// SystemNamespaces returns the objects of the namespaces that exist from the
// start, as a client would send them. They are the caller's.
func SystemNamespaces() []object.Tree {
	var all []object.Tree
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		all = append(all, object.Tree{
			"apiVersion": "v1", "kind": "Namespace", "metadata": object.Tree{"name": name},
		})
	}
	return all
}

func namespaces() resource.Behavior {
	return resource.Behavior{
		ValidateName:   apivalidation.ValidateNamespaceName,
		Default:        labelNamespace,
		PrepareCreate:  prepareNamespace,
		PrepareUpdate:  keepNamespace,
		Validate:       validateNamespace,
		ValidateUpdate: validateNamespaceUpdate,
		BeforeDelete:   terminateNamespace,
		Deletable:      func(obj object.Tree) bool { return len(list(obj, "spec", "finalizers")) == 0 },
		ResetOnWrite:   []string{"status", "spec.finalizers"},
		ResetOnStatus:  []string{"spec"},
	}
}

// labelNamespace keeps the label that says the name.
func labelNamespace(obj object.Tree) {
	if name := text(obj, "metadata", "name"); name != "" {
		child(child(obj, "metadata"), "labels")[corev1.LabelMetadataName] = name
	}
}

func prepareNamespace(_ context.Context, obj object.Tree) error {
	labelNamespace(obj) // a generated name is known only now
	obj["status"] = object.Tree{"phase": string(corev1.NamespaceActive)}
	finalizers := list(obj, "spec", "finalizers")
	if !slices.Contains(finalizers, any(string(corev1.FinalizerKubernetes))) {
		finalizers = append(slices.Clip(finalizers), string(corev1.FinalizerKubernetes))
	}
	child(obj, "spec")["finalizers"] = finalizers
	return nil
}

// keepNamespace: a write of the object leaves finalizers and status alone,
// /status leaves the spec alone, /finalize the status.
func keepNamespace(_ context.Context, obj, old object.Tree, sub string) error {
	switch sub {
	case "status":
		carry(obj, old, "spec")
	case finalize:
		carry(obj, old, "status")
	default:
		carry(obj, old, "status")
		carry(child(obj, "spec"), tree(old, "spec"), "finalizers")
	}
	return nil
}

func validateNamespace(obj object.Tree) field.ErrorList {
	return append(validateFinalizers(obj), validateSpecFinalizers(obj)...)
}

func validateSpecFinalizers(obj object.Tree) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "finalizers")
	for i, f := range list(obj, "spec", "finalizers") {
		name, _ := f.(string)
		for _, msg := range validation.IsQualifiedName(name) {
			errs = append(errs, field.Invalid(path.Index(i), name, msg))
		}
		errs = append(errs, validateFinalizer(name, path.Index(i))...)
	}
	return errs
}

// validateFinalizers is what the kinds of the core group demand of
// metadata.finalizers beyond qualified names.
func validateFinalizers(obj object.Tree) field.ErrorList {
	var errs field.ErrorList
	for i, f := range list(obj, "metadata", "finalizers") {
		name, _ := f.(string)
		errs = append(errs, validateFinalizer(name, field.NewPath("metadata", "finalizers").Index(i))...)
	}
	return errs
}

// validateFinalizer wants a name without a slash to be a standard one.
func validateFinalizer(name string, path *field.Path) field.ErrorList {
	switch name {
	case string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
		return nil
	}
	if strings.Contains(name, "/") {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified")}
}

// validateNamespaceUpdate looks at what a write of a subresource changes; a write of the
// whole object can change neither.
func validateNamespaceUpdate(obj, _ object.Tree, sub string) field.ErrorList {
	switch sub {
	case finalize:
		return validateSpecFinalizers(obj)
	case "status":
		return validatePhase(obj)
	}
	return nil
}

func validatePhase(obj object.Tree) field.ErrorList {
	path, phase := field.NewPath("status", "Phase"), corev1.NamespacePhase(text(obj, "status", "phase"))
	terminating := text(obj, "metadata", "deletionTimestamp") != ""
	switch {
	case terminating && phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(path, phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	case !terminating && phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(path, phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	}
	return nil
}

// terminateNamespace starts the end of a namespace. Three of them have none.
func terminateNamespace(_ context.Context, obj object.Tree) error {
	switch name := text(obj, "metadata", "name"); name {
	case "default", "kube-system", "kube-public":
		return apierrors.NewForbidden(corev1.Resource("namespaces"), name, errors.New("this namespace may not be deleted"))
	}
	child(obj, "status")["phase"] = string(corev1.NamespaceTerminating)
	return nil
}
