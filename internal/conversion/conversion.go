// Package conversion translates objects between the versions of one Definition.
// It knows no storage and no verbs.
package conversion

import (
	"fmt"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Convert translates t from one version of a Definition to another, by way of the
// storage version. from may be nil if the version is no longer known; then t is
// taken for one that differs in apiVersion only. It may modify t, and the result
// may share parts with it.
//
// Strategy None sets apiVersion and nothing else; a version with Go functions uses
// them. A webhook is one more case here.
func Convert(t object.Tree, from, to *resource.Version) (object.Tree, error) {
	if from == to {
		return t, nil
	}
	if from != nil && from.ConvertTo != nil {
		hub, err := from.ConvertTo(t)
		if err != nil {
			return nil, fmt.Errorf("conversion: %s to the storage version: %w", from.APIVersion, err)
		}
		t = hub
	}
	if to.ConvertFrom != nil {
		out, err := to.ConvertFrom(t)
		if err != nil {
			return nil, fmt.Errorf("conversion: the storage version to %s: %w", to.APIVersion, err)
		}
		t = out
	}
	t["apiVersion"] = to.APIVersion
	t["kind"] = to.Definition.Names.Kind
	return t, nil
}

// Trivial reports whether objects of the two versions differ in apiVersion only,
// so that their bytes may be passed on.
func Trivial(from, to *resource.Version) bool {
	return from == to || (from == nil || from.ConvertTo == nil) && to.ConvertFrom == nil
}
