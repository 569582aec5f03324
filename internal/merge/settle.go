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

// What follows is structured-merge-diff's merge.Updater for the common case. It
// comes to the same result and looks only at what differs between two objects.

// difference is what a write does to an object, as seen at one version.
type difference struct {
	removed, written *fieldpath.Set
	same             bool // nothing differs, ignored fields included
}

// difference compares two objects of a version.
func (w *write) difference(live, obj object.Tree, version string, options ...typed.ValidationOptions) (*difference, error) {
	if p, ok := w.Parseable(version); ok && w.suits(obj, p, options...) {
		if d, ok := (suiting{p.Schema, len(options) > 0}).compare(live, obj, p.TypeRef); ok {
			return w.owned(d, version), nil
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
		live, obj = standIn(live, path, 1), standIn(obj, path, 2)
	}
	newTyped, err := w.typedAs(obj, version, options...)
	liveTyped, errLive := w.typedAs(live, version, options...)
	switch ownFirst := version == w.APIVersion; {
	case err != nil && (ownFirst || errLive == nil):
		return nil, w.untyped("new", after, version, err)
	case errLive != nil:
		return nil, w.untyped("live", before, version, errLive)
	}
	c, err := liveTyped.Compare(newTyped)
	if err != nil {
		return nil, fmt.Errorf("failed to compare objects: %w", err)
	}
	same := value.Equals(liveTyped.AsValue(), newTyped.AsValue())
	return w.owned(&difference{c.Removed, c.Modified.Union(c.Added), same}, version), nil
}

// owned leaves out of d what nobody owns who writes through this endpoint.
func (w *write) owned(d *difference, version string) *difference {
	if ignored := w.ignore[fieldpath.APIVersion(version)]; ignored != nil {
		d.removed, d.written = ignored.Filter(d.removed), ignored.Filter(d.written)
	}
	return d
}

// untyped says that t does not fit the schema of a version, as upstream does: at the endpoint's own it is the field
// manager that finds it out, at another its library, which looks at the live object beforehand and does not name it.
func (w *write) untyped(which string, t object.Tree, version string, err error) error {
	switch {
	case version == w.APIVersion:
		return fmt.Errorf("failed to convert %s object (%v) to smd typed: %w", which, describe(t), err)
	case which == "live":
		return err
	}
	return fmt.Errorf("failed to convert %s object: %w", which, err)
}

// settle takes from everybody but self what own says was changed, unless that makes
// conflicts that force does not allow. own is at the endpoint's version; other
// versions are compared after conversion.
func (w *write) settle(live, obj object.Tree, own *difference, known *owners, self string, force bool) error {
	diffs := map[fieldpath.APIVersion]*difference{fieldpath.APIVersion(w.APIVersion): own}
	conflicts := fieldpath.ManagedFields{}
	for id, vs := range known.sets {
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
		if lost := vs.Set().Intersection(d.written); !lost.Empty() {
			conflicts[id] = fieldpath.NewVersionedSet(lost, vs.APIVersion(), false)
		}
	}
	if !force && len(conflicts) > 0 {
		return merge.ConflictsFromManagers(conflicts)
	}
	for id, vs := range known.sets {
		if id == self {
			continue
		}
		set := vs.Set()
		if lost, ok := conflicts[id]; ok {
			set = set.Difference(lost.Set())
		}
		if d := diffs[vs.APIVersion()]; !d.removed.Empty() && !set.Intersection(d.removed).Empty() {
			set = set.Difference(d.removed)
		}
		if set != vs.Set() {
			known.sets[id] = fieldpath.NewVersionedSet(set, vs.APIVersion(), vs.Applied())
		}
	}
	for id, vs := range known.sets {
		if vs.Set().Empty() {
			delete(known.sets, id)
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

// reconcile forgets the entries at versions that the kind no longer has, and
// adapts the others to lists and maps that have become atomic.
func (w *write) reconcile(known *owners) error {
	for id, vs := range known.sets {
		parseable, ok := w.Parseable(string(vs.APIVersion()))
		if !ok {
			delete(known.sets, id)
			continue
		}
		if fits(vs.Set(), parseable.Schema, parseable.TypeRef) {
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
			known.sets[id] = fieldpath.NewVersionedSet(set, vs.APIVersion(), vs.Applied())
		}
	}
	return nil
}

// standIn gives t with n empty objects in place of the list at path, unless that is empty or not there. What else t
// holds is shared.
func standIn(t object.Tree, path []string, n int) object.Tree {
	var in any
	switch v := t[path[0]].(type) {
	case []any:
		if len(path) > 1 || len(v) == 0 {
			return t
		}
		list := make([]any, n)
		for i := range list {
			list[i] = object.Tree{}
		}
		in = list
	case object.Tree:
		if len(path) == 1 {
			return t
		}
		in = standIn(v, path[1:], n)
	default:
		return t
	}
	t = maps.Clone(t)
	t[path[0]] = in
	return t
}
