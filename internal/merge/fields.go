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

// ManagedFields maintains metadata.managedFields for the objects of one kind, for writes through one endpoint. An
// endpoint is a version and a subresource. ManagedFields is safe for concurrent use.
type ManagedFields struct {
	APIVersion string
	// Kind is the required kind of an applied configuration. "" means any kind.
	Kind        string
	Subresource string
	// Parseable returns the typed schema of a version of the kind. It returns false if the kind no longer has the
	// version.
	Parseable func(apiVersion string) (typed.ParseableType, bool)
	// Convert converts a whole object to another version. It must not modify t.
	Convert func(t object.Tree, apiVersion string) (object.Tree, error)
	// Reset returns a filter for the fields that a write through this endpoint may own at a version. A nil filter,
	// or a nil Reset, means all fields.
	Reset func(apiVersion string) fieldpath.Filter
	// AtomicLists are the dotted paths of atomic lists of objects. The caller guarantees that their items match the
	// schema. A comparison checks only whether the lists are equal.
	AtomicLists []string
	// Empty is the object that a create is compared with. It is never modified. For a built-in kind, it is the
	// encoded zero value of the Go type. So no manager owns a field that is always encoded, such as "spec":{}. nil
	// means an object with only apiVersion and kind.
	Empty object.Tree
}

const (
	// currentOperation is the temporary identifier of the manager during an update. With it, the manager takes over
	// fields from its own earlier entry in the same way as from the entries of other managers.
	currentOperation = "current-operation"
	beforeFirstApply = "before-first-apply"
)

// neverOwned are the fields that no manager owns.
var neverOwned = fieldpath.NewSet(
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

// Update compares live with obj and records in obj's managedFields that manager has made the changes. It returns
// obj. It is for creates, updates and non-apply patches. live is nil for a create. Update modifies obj's metadata,
// which may then share entries with live's managedFields. Both objects are at f.APIVersion. now is truncated to
// seconds.
//
// The only error is a 413 StatusError, which means that obj exceeds a limit. If the fields cannot be compared, obj
// gets live's managedFields. An existing object that has no managedFields gets none.
func (f *ManagedFields) Update(live, obj object.Tree, manager string, now time.Time) (object.Tree, error) {
	meta := object.EnsureMetadata(obj)
	liveEntries := object.Metadata(live)[managedFields]
	managers := f.ownersForUpdate(liveEntries, meta[managedFields])
	delete(meta, managedFields)
	isNew := object.UID(live) == ""
	if len(managers.sets) == 0 && !isNew {
		return obj, nil
	}
	if live == nil {
		live = f.empty(object.String(obj, "kind"))
	}
	w := f.write(now)
	err := w.update(withoutManagedFields(live), obj, managers, manager)
	switch {
	case err == nil:
		managers.capUpdates()
		managers.encode(meta)
		return obj, nil
	case apierrors.IsRequestEntityTooLargeError(err):
		return nil, err
	}
	if entries, ok := parseEntries(liveEntries); ok {
		meta[managedFields] = encodeEntries(entries)
	}
	return obj, nil
}

// ownersForUpdate returns the owners before an update. They are the owners that the client sent, if it may set them
// and they are valid. Otherwise they are the owners of the live object.
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

// Apply merges the applied configuration into live and returns the result, which shares no memory with its
// arguments. live is nil for a create. Unless force is set, conflicts are a 409 StatusError with upstream's causes.
// Exceeding a limit is a 413 StatusError. An applied configuration of another version or kind, or with
// managedFields, is a 400 StatusError. A configuration that does not match the schema is a plain error, which
// upstream reports as a 500.
func (f *ManagedFields) Apply(
	live, applied object.Tree, manager string, force bool, now time.Time,
) (object.Tree, error) {
	managers, err := f.decodeOwners(object.Metadata(live)[managedFields])
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
	if err := w.checkApply(live, applied, managers); err != nil {
		return nil, err
	}
	merged, managers, err := w.applyWithUpgrade(live, applied, managers, manager, force)
	if err != nil {
		if conflicts, ok := err.(merge.Conflicts); ok {
			return nil, conflictError(conflicts, managers)
		}
		return nil, err
	}
	out := object.Copy(merged)
	if manager == clientSideManager {
		refreshLastApplied(out, applied)
	}
	managers.encode(object.EnsureMetadata(out))
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

// withoutManagedFields returns t without managedFields. The result shares all other values with t.
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
