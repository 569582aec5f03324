// Package strategy implements the rules of kinds in a write. The source of the rules is a CRD with its schemas
// (custom.go), an upstream strategy (upstream.go), or a Behavior (builtin.go).
package strategy

import (
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Rules implements the behavior of a kind in a write.
type Rules interface {
	// Normalize turns t into an object of the kind at the version of the request. It checks types, prunes unknown
	// fields and applies defaults, as far as the source requires. unknown lists the unknown fields.
	Normalize(w *Write, t object.Tree, from Source) (out object.Tree, unknown []string, err error)
	// OwnableFields returns a function that maps an apiVersion to a filter. The filter selects the fields that a
	// write to the subresource may own. The subresource is "" for the main resource. If the function or the filter
	// is nil, the write may own all fields.
	OwnableFields(subresource string) func(apiVersion string) fieldpath.Filter
	// Prepare sets w.Obj and w.Old. It resets the fields of w.Obj that the caller may not set.
	Prepare(w *Write) error
	// Validate validates w.Obj. If w.Old is not nil, it validates the update of w.Old to w.Obj.
	Validate(w *Write) (field.ErrorList, error)
	// AddWarnings adds the warnings for a valid object.
	AddWarnings(w *Write)
	// Canonicalize converts the valid w.Obj to the form that validating admission receives.
	Canonicalize(w *Write) error
}

// Source is the source of an object that Rules.Normalize receives.
type Source int

// The sources.
const (
	FromBody      Source = iota // a request body, or the result of a patch
	FromType                    // a method of Version.Type
	FromApply                   // the result of an apply
	FromAdmission               // an admission plugin, which has changed an object
)

// RulesOf returns the rules for writes of the kind of v.
func RulesOf(v *resource.Version) Rules {
	switch s := v.Definition.Strategy; {
	case v.Schema != nil:
		return customRules{v}
	case s != nil:
		return strategyRules{v, s}
	}
	return builtinRules{v}
}

// Filters for the fields that a write may own. exceptStatus applies to the main resource of a kind with a status.
// exceptSpec applies to the status of a built-in kind, and onlyStatus to the status of a custom kind.
var (
	exceptStatus = merge.Except("status")
	exceptSpec   = merge.Except("spec")
	onlyStatus   = merge.Except("metadata", "spec")
)

// prepareTrees implements Rules.Prepare for rules that use trees at a version. wholeMetadata means that a write of the
// status may change all metadata. Otherwise it may change only managedFields.
func prepareTrees(w *Write, at *resource.Version, wholeMetadata bool) (err error) {
	b, sub, hasStatus := &w.Def.Behavior, w.Target.Subresource, w.Version.Status
	if w.Op == admission.Create {
		if hasStatus {
			delete(w.Desired, "status")
		}
		object.SetGeneration(w.Desired, 1)
		w.Obj, err = w.desiredAt(at)
		if err == nil && b.PrepareCreate != nil {
			w.Obj = object.Copy(w.Obj) // the next attempt needs the unmodified body
			err = b.PrepareCreate(w.Ctx, w.Obj)
		}
		return err
	}
	if w.Old, err = w.LiveAt(at); err != nil {
		return err
	}
	if w.Obj, err = w.desiredAt(at); err != nil {
		return err
	}
	object.SetGeneration(w.Obj, object.Generation(w.Old))
	switch {
	case sub == "status":
		w.Obj = withStatus(w.Old, w.Obj, wholeMetadata)
	case hasStatus:
		object.CopyField(w.Obj, w.Old, "status")
	}
	if b.PrepareUpdate != nil {
		w.Obj = object.Copy(w.Obj) // the next attempt needs the unmodified body
		if err := b.PrepareUpdate(w.Ctx, w.Obj, w.Old, sub); err != nil {
			return err
		}
	}
	if sub != "status" && GenerationChanged(w.Obj, w.Old, hasStatus) {
		object.SetGeneration(w.Obj, object.Generation(w.Old)+1)
	}
	return nil
}

// withStatus returns old with the status of t, and with all metadata or only the managedFields of t.
func withStatus(old, t object.Tree, wholeMetadata bool) object.Tree {
	out := object.ShallowCopy(old)
	object.CopyField(out, t, "status")
	if wholeMetadata {
		object.CopyField(out, t, "metadata")
	} else {
		object.CopyField(object.EnsureMetadata(out), object.Metadata(t), "managedFields")
	}
	return out
}

// GenerationChanged reports whether t and old differ in a field that affects metadata.generation.
func GenerationChanged(t, old object.Tree, hasStatus bool) bool {
	ignore := func(key string) bool {
		return key == "metadata" || key == "apiVersion" || key == "kind" || key == "status" && hasStatus
	}
	for key, v := range t {
		if other, ok := old[key]; !ignore(key) && (!ok || !object.Equal(v, other)) {
			return true
		}
	}
	for key := range old {
		if _, ok := t[key]; !ok && !ignore(key) {
			return true
		}
	}
	return false
}
