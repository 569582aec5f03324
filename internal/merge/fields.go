package merge

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/object"
)

// ManagedFields keeps metadata.managedFields of the objects of one kind, as written
// through one endpoint (a version and a subresource). It may be used concurrently.
type ManagedFields struct {
	APIVersion string
	// Kind, if set, is what an applied configuration must be of.
	Kind        string
	Subresource string
	// Parseable gives the typed schema of a version of the kind; false if the kind
	// no longer has it.
	Parseable func(apiVersion string) (typed.ParseableType, bool)
	// Convert translates a whole object to another version. It must not modify t.
	Convert func(t object.Tree, apiVersion string) (object.Tree, error)
	// Reset says what of an object at a version a write through this endpoint may own; nil: all. It may be nil itself.
	Reset func(apiVersion string) fieldpath.Filter
	// AtomicLists are dotted paths of lists of objects that are atomic and known to fit their type: whether they
	// differ is all that a comparison looks at.
	AtomicLists []string
	// Empty is the object that a create starts from, which is never modified: for a
	// built-in kind what its zero Go value is encoded as ("spec":{} and the like, whose
	// presence nobody then owns); nil stands for apiVersion and kind alone.
	Empty object.Tree
}

const (
	// currentOperation stands for the manager while an update is compared, so that
	// a manager takes fields from its own earlier entry as from any other.
	currentOperation = "current-operation"
	beforeFirstApply = "before-first-apply"
)

// stripped are the fields that nobody owns.
var stripped = fieldpath.NewSet(
	fieldpath.MakePathOrDie("apiVersion"),
	fieldpath.MakePathOrDie("kind"),
	fieldpath.MakePathOrDie("metadata"),
	fieldpath.MakePathOrDie("metadata", "name"),
	fieldpath.MakePathOrDie("metadata", "namespace"),
	fieldpath.MakePathOrDie("metadata", "creationTimestamp"),
	fieldpath.MakePathOrDie("metadata", "selfLink"),
	fieldpath.MakePathOrDie("metadata", "uid"),
	fieldpath.MakePathOrDie("metadata", "clusterName"),
	fieldpath.MakePathOrDie("metadata", "generation"),
	fieldpath.MakePathOrDie("metadata", "managedFields"),
	fieldpath.MakePathOrDie("metadata", "resourceVersion"),
)

// Update records in obj's managedFields what manager changed between live and
// obj by a create (live nil), an update or a non-apply patch, and returns obj. It
// modifies obj's metadata, which then may share the entries of live's
// managedFields. Both are at f.APIVersion. now is truncated to seconds.
//
// The only error is a 413 StatusError, for an obj that exceeds a limit. Where the fields cannot be compared, obj gets live's
// managedFields. An object that has none and is not new stays without.
func (f *ManagedFields) Update(live, obj object.Tree, manager string, now time.Time) (object.Tree, error) {
	meta := object.EnsureMetadata(obj)
	liveEntries := object.Metadata(live)[managedFields]
	known := f.ownersForUpdate(liveEntries, meta[managedFields])
	delete(meta, managedFields)
	isNew := object.UID(live) == ""
	if len(known.sets) == 0 && !isNew {
		return obj, nil
	}
	if live == nil {
		live = f.empty(object.String(obj, "kind"))
	}
	w := f.write(now)
	err := w.update(withoutManagedFields(live), obj, known, manager)
	switch {
	case err == nil:
		known.capUpdates()
		known.encode(meta)
		return obj, nil
	case apierrors.IsRequestEntityTooLargeError(err):
		return nil, err
	}
	if entries, ok := parseEntries(liveEntries); ok {
		meta[managedFields] = plain(entries)
	}
	return obj, nil
}

// ownersForUpdate gives the owners that an update starts from: those that the
// client sends, if it may set them and they make sense; else those of the live object.
func (f *ManagedFields) ownersForUpdate(live, sent any) *owners {
	if f.Subresource == "" {
		if isReset(sent) {
			return newOwners(1)
		}
		if o, err := f.decodeOwners(sent); err == nil && len(o.sets) > 0 {
			return o
		}
	}
	o, err := f.decodeOwners(live)
	if err != nil {
		return newOwners(1)
	}
	return o
}

func (f *ManagedFields) empty(kind string) object.Tree {
	if f.Empty != nil {
		return f.Empty
	}
	return object.Tree{"apiVersion": f.APIVersion, "kind": kind}
}

// Apply merges the applied configuration into live (nil: a create) and gives the
// result, which shares nothing with its arguments. Conflicts are a 409 StatusError
// with causes as upstream writes them, unless force. A 413 StatusError is for what exceeds a limit. An applied configuration of
// another version or kind, or with managedFields, is a 400 StatusError. One
// that does not fit the schema is a plain error, which upstream makes a 500 of.
func (f *ManagedFields) Apply(live, applied object.Tree, manager string, force bool, now time.Time) (object.Tree, error) {
	known, err := f.decodeOwners(object.Metadata(live)[managedFields])
	if err != nil {
		return nil, fmt.Errorf("failed to decode managed fields: %w", err)
	}
	if err := f.checkApplied(applied); err != nil {
		return nil, err
	}
	if live == nil {
		live = f.empty(object.String(applied, "kind"))
	}
	w := f.write(now)
	live = withoutManagedFields(live)
	if err := w.checkApply(live, applied, known); err != nil {
		return nil, err
	}
	merged, known, err := w.applyUpgrading(live, applied, known, manager, force)
	if err != nil {
		if conflicts, ok := err.(merge.Conflicts); ok {
			return nil, conflictError(conflicts, known)
		}
		return nil, err
	}
	out := object.Copy(merged)
	if manager == clientSideManager {
		refreshLastApplied(out, applied)
	}
	known.encode(object.EnsureMetadata(out))
	return out, nil
}

func (f *ManagedFields) checkApplied(applied object.Tree) error {
	var gvk schema.GroupVersionKind
	if gv, err := schema.ParseGroupVersion(object.String(applied, "apiVersion")); err == nil {
		gvk = gv.WithKind(object.String(applied, "kind"))
	}
	if gvk.GroupVersion().String() != f.APIVersion || f.Kind != "" && gvk.Kind != f.Kind {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid object type: %v", gvk))
	}
	if entries, ok := parseEntries(object.Metadata(applied)[managedFields]); ok && entries != nil {
		return apierrors.NewBadRequest("metadata.managedFields must be nil")
	}
	return nil
}

// withoutManagedFields gives t without them, sharing all else with t.
func withoutManagedFields(t object.Tree) object.Tree {
	meta := object.Metadata(t)
	if _, ok := meta[managedFields]; !ok {
		return t
	}
	out := make(object.Tree, len(t))
	for k, v := range t {
		out[k] = v
	}
	m := make(object.Tree, len(meta))
	for k, v := range meta {
		if k != managedFields {
			m[k] = v
		}
	}
	out["metadata"] = m
	return out
}
