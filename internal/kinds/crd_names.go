package kinds

import (
	"context"
	"fmt"
	"slices"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

func namesOf(t object.Tree) resource.Names {
	return resource.Names{
		Plural: text(t, "plural"), Singular: text(t, "singular"), Kind: text(t, "kind"), ListKind: text(t, "listKind"),
		ShortNames: object.Strings(t, "shortNames"), Categories: object.Strings(t, "categories"),
	}
}

// treeOf is the JSON of names, where only plural and kind are always there.
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

// nameConflict is a name that another kind of the group holds, and that kind.
type nameConflict struct {
	resource, kind string // one of them
	owner          resource.NameOwner
}

// nameConflicts finds which of the names another kind than the CRD itself holds in its group.
func nameConflicts(catalog *resource.Catalog, crd object.Tree, n resource.Names) (all []nameConflict) {
	group, plural := text(crd, "spec", "group"), text(crd, "spec", "names", "plural")
	self := resource.CRDPrefix + plural + "." + group
	for holder := range catalog.NameOwners(group) {
		if holder.Key == self {
			continue
		}
		for _, name := range resources(n) {
			if name != "" && slices.Contains(resources(holder.Names), name) {
				all = append(all, nameConflict{resource: name, owner: holder})
			}
		}
		for _, name := range kinds(n) {
			if name != "" && slices.Contains(kinds(holder.Names), name) {
				all = append(all, nameConflict{kind: name, owner: holder})
			}
		}
	}
	return all
}

// allocation decides which names a CRD gets: those it has and those nobody else in the group has.
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

// shortNames are taken all or none. One that equals the plural or the singular of the same CRD is no conflict (kubernetes#121641).
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
	return slices.Contains(kinds(a.accepted), name) || slices.ContainsFunc(a.conflicts, func(c nameConflict) bool { return c.kind == name })
}

// failingGuard is a guard that never holds: the write is to be made again from the start.
var failingGuard = storage.Guard{Key: resource.CRDPrefix + "\x00", Revision: 1}

// guards make the decision about the names of obj hold at the moment of the commit: nobody else
// may have got a name it takes, and what kept it from getting one must still be there. It
// looks at the catalog once more, which may have moved on since the decision.
func (s crdStatus) guards(ctx context.Context, obj object.Tree) []storage.Guard {
	requested, accepted := namesOf(tree(obj, "spec", "names")), namesOf(tree(obj, "status", "acceptedNames"))
	catalog, err := s.load(ctx)
	if err != nil {
		return []storage.Guard{failingGuard}
	}
	var guards []storage.Guard
	if before := catalog.AcceptedNames(text(obj, "spec", "group"), requested.Plural); acceptsMore(accepted, before) {
		if len(newConflicts(nameConflicts(catalog, obj, accepted), before)) > 0 {
			return []storage.Guard{failingGuard}
		}
		guards = append(guards, storage.Guard{Key: resource.CRDPrefix, Prefix: true, Revision: catalog.Revision()})
	}
	if isConditionTrue(tree(obj, "status"), "NamesAccepted") || sameNames(requested, accepted) {
		return guards
	}
	for _, c := range nameConflicts(catalog, obj, requested) {
		if c.owner.Key != "" {
			guards = append(guards, storage.Guard{Key: c.owner.Key, Revision: c.owner.Revision})
		}
	}
	return guards
}

// acceptsMore reports a name in n that before does not have.
func acceptsMore(n, before resource.Names) bool {
	missing := func(all, had []string) bool {
		return slices.ContainsFunc(all, func(name string) bool { return name != "" && !slices.Contains(had, name) })
	}
	return missing(resources(n), resources(before)) || missing(kinds(n), kinds(before))
}

// newConflicts leaves out what the CRD had before.
func newConflicts(claims []nameConflict, before resource.Names) []nameConflict {
	return slices.DeleteFunc(claims, func(c nameConflict) bool {
		return c.resource != "" && slices.Contains(resources(before), c.resource) || c.kind != "" && slices.Contains(kinds(before), c.kind)
	})
}
