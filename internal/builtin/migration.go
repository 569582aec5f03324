package builtin

import (
	"context"

	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// StorageVersionMigration (KEP-4192). The work is done by a loop in internal/control.

func migrations() resource.Behavior {
	return resource.Behavior{
		Generation:    true,
		ResetOnWrite:  []string{"status"},
		ResetOnStatus: []string{"spec"},
		PrepareCreate: func(_ context.Context, obj object.Tree) error {
			delete(obj, "status")
			return nil
		},
		Validate:       validateMigration,
		ValidateUpdate: validateMigrationUpdate,
	}
}

func validateMigration(obj object.Tree) (errs field.ErrorList) {
	at := field.NewPath("spec", "resource")
	group, name := text(obj, "spec", "resource", "group"), text(obj, "spec", "resource", "resource")
	if name == "" {
		errs = append(errs, field.Required(at.Child("resource"), "resource is required"))
	}
	for _, problem := range path.IsValidPathSegmentName(name) {
		errs = append(errs, field.Invalid(at.Child("resource"), name, problem))
	}
	if group != "" {
		for _, problem := range validation.IsDNS1123Subdomain(group) {
			errs = append(errs, field.Invalid(at.Child("group"), group, problem))
		}
	}
	return errs
}

func validateMigrationUpdate(obj, old object.Tree, sub string) (errs field.ErrorList) {
	if sub != "status" {
		if !object.Equal(value(obj, "spec"), value(old, "spec")) {
			errs = append(errs, field.Invalid(field.NewPath("spec"), value(obj, "spec"), "field is immutable"))
		}
		return errs
	}
	at := field.NewPath("status")
	if was := text(old, "status", "resourceVersion"); was != "" && was != text(obj, "status", "resourceVersion") {
		errs = append(errs, field.Invalid(at.Child("resourceVersion"), text(obj, "status", "resourceVersion"), "field is immutable"))
	}
	var conditions []metav1.Condition
	for _, c := range list(tree(obj, "status"), "conditions") {
		var condition metav1.Condition
		if t, ok := c.(object.Tree); ok && runtime.DefaultUnstructuredConverter.FromUnstructured(t, &condition) == nil {
			conditions = append(conditions, condition)
		}
	}
	errs = append(errs, metavalidation.ValidateConditions(conditions, at.Child("conditions"))...)
	if migrationCondition(obj, "Succeeded") && migrationCondition(obj, "Failed") {
		errs = append(errs, field.Invalid(at.Child("conditions"), "", "Both success and failed conditions cannot be true at the same time"))
	}
	return errs
}

// migrationCondition reports whether a condition is True.
func migrationCondition(obj object.Tree, kind string) bool {
	for _, c := range list(tree(obj, "status"), "conditions") {
		if t, ok := c.(object.Tree); ok && text(t, "type") == kind {
			return text(t, "status") == "True"
		}
	}
	return false
}

func migrationColumns() []resource.Column {
	state := func(t object.Tree) any {
		for _, kind := range []string{"Succeeded", "Failed", "Running"} {
			if migrationCondition(t, kind) {
				return kind
			}
		}
		return "Pending"
	}
	name := func(t object.Tree) any {
		gr := metav1.GroupResource{Group: text(t, "spec", "resource", "group"), Resource: text(t, "spec", "resource", "resource")}
		return gr.String()
	}
	return []resource.Column{
		nameColumn(), cellColumn("Resource", "The resource that is migrated", name),
		cellColumn("Status", "Pending, Running, Succeeded or Failed", state),
		cellColumn("Migrated", "How many objects have been looked at, of how many", func(t object.Tree) any {
			return text(t, "metadata", "annotations", resource.MigrationProgressAnnotation)
		}),
		ageColumn(),
	}
}
