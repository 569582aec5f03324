package migration

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
)

// automaticLabel marks StorageVersionMigrations that the server has created.
const automaticLabel = "trellis.dev/automatic-migration"

// createAutomatic creates a StorageVersionMigration for a CRD if objects may be stored at versions other than the
// storage version. It creates only one for each generation of the CRD. A failed migration is thus not retried forever.
func (m *Controller) createAutomatic(ctx context.Context, name string) error {
	crd, err := m.Dynamic.Resource(crds).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return informer.IgnoreNotFound(err)
	}
	_, storage := versionsOf(crd)
	stored, _, _ := unstructured.NestedStringSlice(crd.Object, "status", "storedVersions")
	if crd.GetDeletionTimestamp() != nil || len(stored) == 0 || len(stored) == 1 && stored[0] == storage {
		return nil
	}
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	svm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": migrations.GroupVersion().String(), "kind": kind.Kind,
		"metadata": map[string]any{
			"name":   fmt.Sprintf("%s-%.8s-%d", name, crd.GetUID(), crd.GetGeneration()),
			"labels": map[string]any{automaticLabel: "true"},
		},
		"spec": map[string]any{"resource": map[string]any{"group": group, "resource": plural}},
	}}
	options := metav1.CreateOptions{FieldManager: fieldManager}
	_, err = m.Dynamic.Resource(migrations).Create(ctx, svm, options)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// deleteOtherAutomatic deletes the other finished automatic migrations of the same resource, if the migration g is
// automatic.
func (g *migration) deleteOtherAutomatic(ctx context.Context) error {
	if g.object.GetLabels()[automaticLabel] == "" {
		return nil
	}
	client := g.Dynamic.Resource(migrations)
	all, err := client.List(ctx, metav1.ListOptions{LabelSelector: automaticLabel})
	if err != nil {
		return err
	}
	for i := range all.Items {
		o := &all.Items[i]
		if o.GetName() == g.object.GetName() || resourceOf(o) != resourceOf(g.object) || !finished(o) {
			continue
		}
		uid := o.GetUID()
		err := client.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if informer.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}
