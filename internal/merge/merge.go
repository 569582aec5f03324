// Package merge changes an object by a patch of any of the four kinds and keeps
// who owns which field. It knows no kinds, storage or HTTP.
package merge

import (
	"time"

	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/object"
)

// JSON applies a JSON patch (RFC 6902) to doc, which is not modified.
func JSON(doc object.Tree, patch []byte) (object.Tree, error) { panic("merge: JSON") }

// Merge applies a merge patch (RFC 7386) to doc, which is not modified. duplicates as in object.DecodeJSON.
func Merge(doc object.Tree, patch []byte) (out object.Tree, duplicates []string, err error) {
	panic("merge: Merge")
}

// Strategic applies a strategic merge patch by the struct tags of goType, a pointer to
// a struct of k8s.io/api.
func Strategic(doc object.Tree, patch []byte, goType any) (out object.Tree, duplicates []string, err error) {
	panic("merge: Strategic")
}

// Fields keeps metadata.managedFields of the objects of one kind, as written
// through one endpoint (a version and a subresource).
type Fields struct {
	APIVersion  string
	Subresource string
	// Parseable gives the typed schema of a version of the kind; false if the kind
	// no longer has it.
	Parseable func(apiVersion string) (typed.ParseableType, bool)
	// Convert translates a whole object to another version.
	Convert func(t object.Tree, apiVersion string) (object.Tree, error)
	// Reset are dotted paths ("status") that a write through this endpoint never owns.
	Reset []string
}

// Update records in obj's managedFields what manager changed between live and
// obj by a create (live nil), an update or a non-apply patch. It modifies obj's metadata and is a
// no-op where upstream's is. now is truncated to seconds.
func (f *Fields) Update(live, obj object.Tree, manager string, now time.Time) (object.Tree, error) {
	panic("merge: Update")
}

// Apply merges the applied configuration into live (nil or without managedFields: a create) and gives the
// result. Conflicts are a 409 StatusError with causes as upstream writes them, unless force.
func (f *Fields) Apply(live, applied object.Tree, manager string, force bool, now time.Time) (object.Tree, error) {
	panic("merge: Apply")
}
