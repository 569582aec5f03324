package engine

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// rules are what a kind does by itself in the course of a write: by the schemas of its CRD, or in Go.
type rules interface {
	// shape makes of what a client sends an object of the kind, at the version of the request: of the right types, without
	// what the kind does not have, with defaults. It lists the unknown fields. typed says that t comes from the kind's Go type.
	shape(w *write, t object.Tree, typed bool) (out object.Tree, unknown []string, err error)
	// fill fills in the defaults of an object that something else than a client has changed.
	fill(w *write, t object.Tree) (object.Tree, error)
	// complete makes of what an apply has merged an object of the kind, as shape does.
	complete(w *write, merged object.Tree) (object.Tree, error)
	// notOwned lists the fields that a write through a subresource ("" for none) never owns.
	notOwned(subresource string) []string
	// prepare sets obj and old, and resets in obj what the caller may not set.
	prepare(w *write) error
	// validate checks obj, which is to replace old if there is one.
	validate(w *write) (field.ErrorList, error)
	// warnings are for an object that is valid.
	warnings(w *write) []string
	// pack gives obj the form in which it is stored.
	pack(w *write) (object.Packed, error)
}

// rulesOf are the rules for writes at a version.
func rulesOf(v *resource.Version) rules {
	if v.Definition.Custom != nil {
		return customRules{v}
	}
	return builtinRules{v}
}

// prepare resets what the caller may not set.
func (w *write) prepare() error { return w.rules.prepare(w) }
