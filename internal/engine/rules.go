package engine

import (
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// rules are what a kind does by itself in the course of a write: by the schemas of its CRD (rules_custom.go),
// by upstream's strategy (rules_strategy.go), or by a Behavior (rules_builtin.go).
type rules interface {
	// normalize makes of what a client sends an object of the kind, at the version of the request: of the right types, without
	// what the kind does not have, with defaults. It lists the unknown fields. typed says that t comes from the kind's Go type.
	normalize(w *write, t object.Tree, typed bool) (out object.Tree, unknown []string, err error)
	// fillDefaults fills in the defaults of an object that something else than a client has changed.
	fillDefaults(w *write, t object.Tree) (object.Tree, error)
	// normalizeMerged makes of what an apply has merged an object of the kind, as shape does.
	normalizeMerged(w *write, merged object.Tree) (object.Tree, error)
	// ownableFields says what of an object at a version a write through a subresource ("" for none) may own; a nil filter lets all pass.
	ownableFields(subresource string) func(apiVersion string) fieldpath.Filter
	// prepare sets obj and old, and resets in obj what the caller may not set.
	prepare(w *write) error
	// validate checks obj, which is to replace old if there is one.
	validate(w *write) (field.ErrorList, error)
	// warnings are for an object that is valid.
	warnings(w *write) []string
	// canonicalize gives a valid obj the form in which admission sees it.
	canonicalize(w *write) error
	// pack gives obj the form in which it is stored.
	pack(w *write) (object.Packed, error)
}

// rulesOf are the rules for writes at a version.
func rulesOf(v *resource.Version) rules {
	switch d := v.Definition; {
	case d.Custom != nil:
		return customRules{v}
	case d.Strategy != nil:
		return strategyRules{v, d.Strategy}
	}
	return builtinRules{v}
}

// canonicalize brings what is valid into its final form.
func (w *write) canonicalize() error { return w.rules.canonicalize(w) }

// What a write of an object never owns, and what one of its status does not.
var (
	exceptStatus = merge.Except("status")
	exceptSpec   = merge.Except("spec")
	onlyStatus   = merge.Except("metadata", "spec")
)

// prepare resets what the caller may not set.
func (w *write) prepare() error { return w.rules.prepare(w) }
