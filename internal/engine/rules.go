package engine

import (
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// rules is the behavior of a kind in a write. It is defined by the schemas of a CRD (rules_custom.go), by
// upstream's strategy (rules_strategy.go), or by a Behavior (rules_builtin.go).
type rules interface {
	// normalize turns a decoded body into an object of the kind, at the version of the request: it checks
	// types, prunes unknown fields and applies defaults. unknown lists the unknown fields. typed means that t
	// comes from the kind's Go type.
	normalize(w *write, t object.Tree, typed bool) (out object.Tree, unknown []string, err error)
	// fillDefaults applies the defaults to an object that the server has changed, for example in admission.
	fillDefaults(w *write, t object.Tree) (object.Tree, error)
	// normalizeMerged is normalize for the result of an apply.
	normalizeMerged(w *write, merged object.Tree) (object.Tree, error)
	// ownableFields returns a function that maps an apiVersion to the filter of the fields that a write through
	// a subresource may own. The subresource is "" for the main resource. A nil filter allows all fields.
	ownableFields(subresource string) func(apiVersion string) fieldpath.Filter
	// prepare sets obj and old, and resets the fields of obj that the caller may not set.
	prepare(w *write) error
	// validate validates obj, as an update of old unless old is nil.
	validate(w *write) (field.ErrorList, error)
	// warnings returns the warnings for a valid object.
	warnings(w *write) []string
	// canonicalize converts a valid obj to the form that validating admission sees.
	canonicalize(w *write) error
	// pack encodes obj for the store.
	pack(w *write) (object.Packed, error)
}

// rulesOf returns the rules for writes at a version.
func rulesOf(v *resource.Version) rules {
	switch d := v.Definition; {
	case d.Custom != nil:
		return customRules{v}
	case d.Strategy != nil:
		return strategyRules{v, d.Strategy}
	}
	return builtinRules{v}
}

// canonicalize converts the valid object to its final form.
func (w *write) canonicalize() error { return w.rules.canonicalize(w) }

// Filters for the fields that a write may own. exceptStatus is for the main resource of kinds with a status, exceptSpec
// for the status of a built-in kind, and onlyStatus for the status of a custom kind.
var (
	exceptStatus = merge.Except("status")
	exceptSpec   = merge.Except("spec")
	onlyStatus   = merge.Except("metadata", "spec")
)

// prepare resets the fields that the caller may not set.
func (w *write) prepare() error { return w.rules.prepare(w) }
