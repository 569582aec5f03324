package merge

import (
	"fmt"
	"maps"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/trellis-k8s/trellis/internal/object"
)

// This file implements structured-merge-diff's merge.Updater for the common case. The result is the same, but this
// code inspects only the differences between two objects.

// difference is the effect of a write on an object at one version.
type difference struct {
	removed, written *fieldpath.Set
	unchanged        bool // the objects are equal, including their ignored fields
}

// difference compares two objects at a version.
func (w *write) difference(
	live, obj object.Tree, version string, options ...typed.ValidationOptions,
) (*difference, error) {
	if p, ok := w.Parseable(version); ok && w.matchesSchema(obj, p, options...) {
		if d, ok := (schemaMatcher{p.Schema, len(options) > 0}).compare(live, obj, p.TypeRef); ok {
			return w.dropIgnored(d, version), nil
		}
	}
	if err := w.checkObject(obj, version); err != nil {
		return nil, err
	}
	if w.checkObject(live, version) != nil {
		return nil, errLargeLive
	}
	before, after := live, obj
	for _, dotted := range w.AtomicLists {
		path := strings.Split(dotted, ".")
		live, obj = replaceList(live, path, 1), replaceList(obj, path, 2)
	}
	newTyped, err := w.typedAs(obj, version, options...)
	liveTyped, errLive := w.typedAs(live, version, options...)
	switch ownFirst := version == w.APIVersion; {
	case err != nil && (ownFirst || errLive == nil):
		return nil, w.schemaError("new", after, version, err)
	case errLive != nil:
		return nil, w.schemaError("live", before, version, errLive)
	}
	c, err := liveTyped.Compare(newTyped)
	if err != nil {
		return nil, fmt.Errorf("failed to compare objects: %w", err)
	}
	unchanged := value.Equals(liveTyped.AsValue(), newTyped.AsValue())
	return w.dropIgnored(&difference{c.Removed, c.Modified.Union(c.Added), unchanged}, version), nil
}

// dropIgnored removes from d the fields that managers cannot own through this endpoint.
func (w *write) dropIgnored(d *difference, version string) *difference {
	if ignored := w.ignore[fieldpath.APIVersion(version)]; ignored != nil {
		d.removed, d.written = ignored.Filter(d.removed), ignored.Filter(d.written)
	}
	return d
}

// schemaError returns upstream's error for an object that does not match the schema of a version. At the endpoint's
// own version, it is an error of the field manager. At another version, it is an error of structured-merge-diff,
// which checks the live object first. The parameter which is "live" or "new".
func (w *write) schemaError(which string, t object.Tree, version string, err error) error {
	switch {
	case version == w.APIVersion:
		return fmt.Errorf("failed to convert %s object (%v) to smd typed: %w", which, describe(t), err)
	case which == "live":
		return err
	}
	return fmt.Errorf("failed to convert %s object: %w", which, err)
}

// takeOwnership removes the fields in change from all managers except self. It returns conflicts if a manager loses
// written fields and force is false. change is the difference at the endpoint's version. For managers at other
// versions, takeOwnership converts and compares the objects.
func (w *write) takeOwnership(
	live, obj object.Tree, change *difference, managers *owners, self string, force bool,
) error {
	diffs := map[fieldpath.APIVersion]*difference{fieldpath.APIVersion(w.APIVersion): change}
	conflicts := fieldpath.ManagedFields{}
	for id, vs := range managers.sets {
		if id == self {
			continue
		}
		d, ok := diffs[vs.APIVersion()]
		if !ok {
			var err error
			if d, err = w.convertedDifference(live, obj, string(vs.APIVersion())); err != nil {
				return err
			}
			diffs[vs.APIVersion()] = d
		}
		if taken := vs.Set().Intersection(d.written); !taken.Empty() {
			conflicts[id] = fieldpath.NewVersionedSet(taken, vs.APIVersion(), false)
		}
	}
	if !force && len(conflicts) > 0 {
		return merge.ConflictsFromManagers(conflicts)
	}
	for id, vs := range managers.sets {
		if id == self {
			continue
		}
		set := vs.Set()
		if taken, ok := conflicts[id]; ok {
			set = set.Difference(taken.Set())
		}
		if d := diffs[vs.APIVersion()]; !d.removed.Empty() && !set.Intersection(d.removed).Empty() {
			set = set.Difference(d.removed)
		}
		if set != vs.Set() {
			managers.sets[id] = fieldpath.NewVersionedSet(set, vs.APIVersion(), vs.Applied())
		}
	}
	for id, vs := range managers.sets {
		if vs.Set().Empty() {
			delete(managers.sets, id)
		}
	}
	return nil
}

func (w *write) convertedDifference(live, obj object.Tree, version string) (*difference, error) {
	live, err := w.Convert(live, version)
	if err != nil {
		return nil, err
	}
	if obj, err = w.Convert(obj, version); err != nil {
		return nil, fmt.Errorf("failed to convert new object: %w", err)
	}
	return w.difference(live, obj, version)
}

// reconcileWithSchema removes entries at versions that the kind no longer has. It adapts the other entries to lists
// and maps that have become atomic.
func (w *write) reconcileWithSchema(managers *owners) error {
	for id, vs := range managers.sets {
		parseable, ok := w.Parseable(string(vs.APIVersion()))
		if !ok {
			delete(managers.sets, id)
			continue
		}
		if isReconciled(vs.Set(), parseable.Schema, parseable.TypeRef) {
			continue
		}
		like, err := parseable.FromUnstructured(object.Tree{})
		if err != nil {
			return err
		}
		set, err := typed.ReconcileFieldSetWithSchema(vs.Set(), like)
		if err != nil {
			return err
		}
		if set != nil {
			managers.sets[id] = fieldpath.NewVersionedSet(set, vs.APIVersion(), vs.Applied())
		}
	}
	return nil
}

// replaceList returns a copy of t in which n empty objects replace the list at path. It returns t itself if the
// list is empty or missing. The copy shares all other values with t.
func replaceList(t object.Tree, path []string, n int) object.Tree {
	var replaced any
	switch v := t[path[0]].(type) {
	case []any:
		if len(path) > 1 || len(v) == 0 {
			return t
		}
		list := make([]any, n)
		for i := range list {
			list[i] = object.Tree{}
		}
		replaced = list
	case object.Tree:
		if len(path) == 1 {
			return t
		}
		replaced = replaceList(v, path[1:], n)
	default:
		return t
	}
	t = maps.Clone(t)
	t[path[0]] = replaced
	return t
}
