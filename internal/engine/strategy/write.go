package strategy

import (
	"context"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Write is the state of a write request that the rules of its kind use.
type Write struct {
	Request
	Attempt
}

// Request is the part of a Write that all attempts share.
type Request struct {
	Ctx        context.Context // context of the request, for conversions during reads and writes
	Target     verb.Target
	Caller     verb.Caller
	CreateOnly bool // the write must not change an existing object
	IsPatch    bool // the write is a patch or an apply

	// The version and the kind in the current catalog.
	Version *resource.Version
	Def     *resource.Definition
	View    record.View
	Memo    conversion.Memo
}

// Attempt is the part of a Write that is reset at the start of each attempt.
type Attempt struct {
	Record *storage.Record // the live object's record; nil if the object does not exist
	Op     admission.Operation

	// Live is the live object, and Desired is the object that the write wants to store. Both are at the version of
	// the request. Live is never modified. In Desired, only the top-level fields and the fields of its metadata may
	// be modified, because the next attempt may share the rest.
	Live, Desired object.Tree
	// Old and Obj are Live and Desired in the form that the kind's rules use.
	Old, Obj object.Tree
	Typed    Typed // for kinds with a Strategy
	Warnings []string
}

// Warn adds warnings to the response.
func (w *Write) Warn(texts ...string) { w.Warnings = append(w.Warnings, texts...) }

// At returns t at a version of the kind. It does not modify t. The result may share memory with t.
func (w *Write) At(t object.Tree, to *resource.Version) (object.Tree, error) {
	out, err := w.Memo.Convert(w.Ctx, t, to)
	return out, verb.Status(err)
}

// LiveAt returns the live object at a version of the kind.
func (w *Write) LiveAt(v *resource.Version) (object.Tree, error) {
	switch {
	case w.Version == v:
		return w.Live, nil
	case conversion.Trivial(v, w.Version):
		old := maps.Clone(w.Live)
		old["apiVersion"] = v.APIVersion
		return old, nil
	}
	return w.View.Other(v).Tree(w.Ctx, record.Packed(w.Record), w.Record.Modified)
}

// desiredAt returns the desired object at a version of the kind. At the version of the request it keeps a wrong
// apiVersion that a patch has set, which the validation rejects.
func (w *Write) desiredAt(v *resource.Version) (object.Tree, error) {
	if w.Version == v {
		return w.Desired, nil
	}
	return w.At(w.Desired, v)
}

// Undecodable returns the 400 for an object that cannot be decoded as a kind.
func (w *Write) Undecodable(kind, problem string) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %s",
		kind, w.Version.GroupVersion.Version, kind, problem))
}
