package crd

import (
	"context"
	"fmt"
	"slices"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

func namesOf(t object.Tree) resource.Names {
	return resource.Names{
		Plural: object.String(t, "plural"), Singular: object.String(t, "singular"),
		Kind: object.String(t, "kind"), ListKind: object.String(t, "listKind"),
		ShortNames: object.Strings(t, "shortNames"), Categories: object.Strings(t, "categories"),
	}
}

// treeOf returns the JSON tree of names. Empty names except plural and kind are omitted.
func treeOf(n resource.Names) object.Tree {
	t := object.Tree{"plural": n.Plural, "kind": n.Kind}
	object.SetString(t, "singular", n.Singular)
	object.SetString(t, "listKind", n.ListKind)
	if len(n.ShortNames) > 0 {
		object.SetStrings(t, "shortNames", n.ShortNames)
	}
	if len(n.Categories) > 0 {
		object.SetStrings(t, "categories", n.Categories)
	}
	return t
}

func sameNames(a, b resource.Names) bool {
	return a.Plural == b.Plural && a.Singular == b.Singular && a.Kind == b.Kind && a.ListKind == b.ListKind &&
		slices.Equal(a.ShortNames, b.ShortNames) && slices.Equal(a.Categories, b.Categories)
}

func resources(n resource.Names) []string {
	return append([]string{n.Plural, n.Singular}, n.ShortNames...)
}

func kinds(n resource.Names) []string { return []string{n.Kind, n.ListKind} }

// nameConflict describes a name that another kind of the group owns.
type nameConflict struct {
	resource, kind string // one of them is ""
	owner          catalog.NameOwner
}

// nameConflicts returns the conflicts for the names n of a CRD. A name conflicts if another kind in the group of the
// CRD owns it.
func nameConflicts(catalog *catalog.Catalog, crd object.Tree, n resource.Names) (all []nameConflict) {
	group, plural := object.StringAt(crd, "spec", "group"), object.StringAt(crd, "spec", "names", "plural")
	self := definition.CRDPrefix + plural + "." + group
	for other := range catalog.NameOwners(group) {
		if other.Key == self {
			continue
		}
		for _, name := range resources(n) {
			if name != "" && slices.Contains(resources(other.Names), name) {
				all = append(all, nameConflict{resource: name, owner: other})
			}
		}
		for _, name := range kinds(n) {
			if name != "" && slices.Contains(kinds(other.Names), name) {
				all = append(all, nameConflict{kind: name, owner: other})
			}
		}
	}
	return all
}

// allocation computes the accepted names of a CRD. They are the names that it already has, and the requested names that
// no other kind of the group owns.
type allocation struct {
	requested, accepted resource.Names
	conflicts           []nameConflict

	result          resource.Names
	reason, message string // of the last conflict found
}

func (a *allocation) run() {
	a.result = a.accepted
	a.accept("PluralConflict", &a.result.Plural, a.requested.Plural, a.resourceTaken)
	a.accept("SingularConflict", &a.result.Singular, a.requested.Singular, a.resourceTaken)
	if !slices.Equal(a.requested.ShortNames, a.accepted.ShortNames) {
		a.shortNames()
	}
	a.accept("KindConflict", &a.result.Kind, a.requested.Kind, a.kindTaken)
	a.accept("ListKindConflict", &a.result.ListKind, a.requested.ListKind, a.kindTaken)
	a.result.Categories = a.requested.Categories
}

func (a *allocation) accept(reason string, name *string, requested string, taken func(string) bool) {
	if *name == requested || !taken(requested) {
		*name = requested
		return
	}
	a.reason, a.message = reason, inUse(requested).Error()
}

func inUse(name string) error { return fmt.Errorf("%q is already in use", name) }

// shortNames accepts either all short names or none. A short name that equals the plural or the singular of the same
// CRD is no conflict (kubernetes#121641).
func (a *allocation) shortNames() {
	var errs []error
	for _, name := range a.requested.ShortNames {
		if !slices.Contains(a.accepted.ShortNames, name) && a.resourceInUse(name) {
			errs = append(errs, inUse(name))
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		a.reason, a.message = "ShortNamesConflict", err.Error()
		return
	}
	a.result.ShortNames = a.requested.ShortNames
}

func (a *allocation) resourceTaken(name string) bool {
	return slices.Contains(resources(a.accepted), name) || a.resourceInUse(name)
}

func (a *allocation) resourceInUse(resource string) bool {
	return slices.ContainsFunc(a.conflicts, func(c nameConflict) bool { return c.resource == resource })
}

func (a *allocation) kindTaken(name string) bool {
	return slices.Contains(kinds(a.accepted), name) ||
		slices.ContainsFunc(a.conflicts, func(c nameConflict) bool { return c.kind == name })
}

// failingGuard is a commit guard that always fails. The engine then retries the whole write.
var failingGuard = storage.Guard{Key: definition.CRDPrefix + "\x00", Revision: 1}

// guards returns commit guards that fail if the accepted names of obj are no longer correct. This is the case if
// another kind has acquired a name that obj newly accepts, or if the owner of a conflicting name has changed. guards
// loads the catalog again, because the accepted names may have been computed from an older catalog.
func (s crdStatus) guards(ctx context.Context, obj object.Tree) []storage.Guard {
	requested, accepted := requestedNames(obj), acceptedNames(object.TreeAt(obj, "status"))
	catalog, err := s.load(ctx)
	if err != nil {
		return []storage.Guard{failingGuard}
	}
	var guards []storage.Guard
	before := catalog.AcceptedNames(object.StringAt(obj, "spec", "group"), requested.Plural)
	if acceptsMore(accepted, before) {
		if len(newConflicts(nameConflicts(catalog, obj, accepted), before)) > 0 {
			return []storage.Guard{failingGuard}
		}
		guards = append(guards, storage.Guard{Key: definition.CRDPrefix, Prefix: true, Revision: catalog.Revision()})
	}
	if object.HasCondition(object.TreeAt(obj, "status"), "NamesAccepted") || sameNames(requested, accepted) {
		return guards
	}
	for _, c := range nameConflicts(catalog, obj, requested) {
		if c.owner.Key != "" {
			guards = append(guards, storage.Guard{Key: c.owner.Key, Revision: c.owner.Revision})
		}
	}
	return guards
}

// acceptsMore reports whether the names n contain a name that is missing in the names before.
func acceptsMore(n, before resource.Names) bool {
	missing := func(all, had []string) bool {
		return slices.ContainsFunc(all, func(name string) bool { return name != "" && !slices.Contains(had, name) })
	}
	return missing(resources(n), resources(before)) || missing(kinds(n), kinds(before))
}

// newConflicts returns the conflicts except those for the names in before, which the CRD already has.
func newConflicts(conflicts []nameConflict, before resource.Names) []nameConflict {
	return slices.DeleteFunc(conflicts, func(c nameConflict) bool {
		return c.resource != "" && slices.Contains(resources(before), c.resource) || c.kind != "" &&
			slices.Contains(kinds(before), c.kind)
	})
}
