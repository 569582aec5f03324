package engine

import (
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// rules implements the behavior of a kind in a write. The source of the behavior is a CRD with its schemas
// (rules_custom.go), an upstream strategy (rules_strategy.go), or a Behavior (rules_builtin.go).
type rules interface {
	// normalize turns a decoded body into an object of the kind at the version of the request. It checks types,
	// prunes unknown fields and applies defaults. unknown lists the unknown fields. typed means that t was decoded
	// with the kind's Go type.
	normalize(w *write, t object.Tree, typed bool) (out object.Tree, unknown []string, err error)
	// fillDefaults applies the defaults to an object that the server has changed, for example during admission.
	fillDefaults(w *write, t object.Tree) (object.Tree, error)
	// normalizeMerged does the same as normalize for the result of an apply.
	normalizeMerged(w *write, merged object.Tree) (object.Tree, error)
	// ownableFields returns a function that maps an apiVersion to a filter. The filter selects the fields that a
	// write to the subresource may own. The subresource is "" for the main resource. If the function or the filter
	// is nil, the write may own all fields.
	ownableFields(subresource string) func(apiVersion string) fieldpath.Filter
	// prepare sets w.obj and w.old. It resets the fields of w.obj that the caller may not set.
	prepare(w *write) error
	// validate validates w.obj. If w.old is not nil, it validates the update of w.old to w.obj.
	validate(w *write) (field.ErrorList, error)
	// warnings returns the warnings for a valid object.
	warnings(w *write) []string
	// canonicalize converts the valid w.obj to the form that validating admission receives.
	canonicalize(w *write) error
	// pack encodes w.obj for the store.
	pack(w *write) (object.Packed, error)
}

// rulesOf returns the rules for writes of the kind of v.
func rulesOf(v *resource.Version) rules {
	switch d := v.Definition; {
	case d.Custom != nil:
		return customRules{v}
	case d.Strategy != nil:
		return strategyRules{v, d.Strategy}
	}
	return builtinRules{v}
}

// canonicalize converts the valid object to the form that validating admission receives.
func (w *write) canonicalize() error { return w.rules.canonicalize(w) }

// Filters for the fields that a write may own. exceptStatus applies to the main resource of a kind with a status.
// exceptSpec applies to the status of a built-in kind, and onlyStatus to the status of a custom kind.
var (
	exceptStatus = merge.Except("status")
	exceptSpec   = merge.Except("spec")
	onlyStatus   = merge.Except("metadata", "spec")
)

// prepare resets the fields that the caller may not set.
func (w *write) prepare() error { return w.rules.prepare(w) }
