package builtin

import (
	"context"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// ServiceAccount and Lease.

const enforceMountable = "kubernetes.io/enforce-mountable-secrets"

func serviceAccounts() resource.Behavior {
	return resource.Behavior{
		PrepareCreate: func(_ context.Context, obj object.Tree) error {
			keepSecretNames(obj)
			return nil
		},
		PrepareUpdate: func(_ context.Context, obj, _ object.Tree, _ string) error {
			keepSecretNames(obj)
			return nil
		},
		Validate: validateFinalizers,
		Warnings: func(obj, old object.Tree) []string {
			if value(old, "metadata", "annotations", enforceMountable) != nil || value(obj, "metadata", "annotations", enforceMountable) == nil {
				return nil
			}
			return []string{"metadata.annotations[" + enforceMountable + "]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"}
		},
	}
}

// keepSecretNames drops all that a reference says of a secret beyond its name.
func keepSecretNames(obj object.Tree) {
	for _, ref := range list(obj, "secrets") {
		secret, _ := ref.(object.Tree)
		for key := range secret {
			if key != "name" {
				delete(secret, key)
			}
		}
	}
}

func leases() resource.Behavior {
	return resource.Behavior{
		PrepareCreate: func(_ context.Context, obj object.Tree) error {
			dropCoordination(tree(obj, "spec"), nil)
			return nil
		},
		PrepareUpdate: func(_ context.Context, obj, old object.Tree, _ string) error {
			dropCoordination(tree(obj, "spec"), tree(old, "spec"))
			return nil
		},
		Validate: validateLease,
	}
}

// dropCoordination clears the fields of upstream's gate CoordinatedLeaderElection,
// which is off, unless they are there already.
func dropCoordination(spec, old object.Tree) {
	for _, name := range []string{"strategy", "preferredHolder"} {
		if _, had := old[name]; !had {
			delete(spec, name)
		}
	}
}

func validateLease(obj object.Tree) field.ErrorList {
	var errs field.ErrorList
	spec, path := tree(obj, "spec"), field.NewPath("spec")
	if n, set := spec["leaseDurationSeconds"]; set && number(spec, "leaseDurationSeconds") <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), n, "must be greater than 0"))
	}
	if n, set := spec["leaseTransitions"]; set && number(spec, "leaseTransitions") < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), n, "must be greater than or equal to 0"))
	}
	strategy := text(spec, "strategy")
	if spec["strategy"] != nil {
		errs = append(errs, validateStrategy(coordinationv1.CoordinatedLeaseStrategy(strategy), path.Child("strategy"))...)
	}
	if text(spec, "preferredHolder") != "" && strategy == "" {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
	}
	return errs
}

func validateStrategy(strategy coordinationv1.CoordinatedLeaseStrategy, path *field.Path) field.ErrorList {
	known := []coordinationv1.CoordinatedLeaseStrategy{coordinationv1.OldestEmulationVersion}
	path = path.Child("strategy") // twice, as upstream has it
	if !strings.Contains(string(strategy), "/") {
		if slices.Contains(known, strategy) {
			return nil
		}
		return field.ErrorList{field.NotSupported(path, strategy, known)}
	}
	var errs field.ErrorList
	for _, msg := range validation.IsQualifiedName(string(strategy)) {
		errs = append(errs, field.Invalid(path, strategy, msg))
	}
	return errs
}
