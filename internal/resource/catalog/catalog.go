// Package catalog maintains the immutable Catalog of all served kinds. It follows the CRDs and APIServices of the
// store.
package catalog

import (
	"iter"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Catalog holds all kinds and APIServices that are served at one moment. It is immutable. The next Catalog shares
// the groups that have not changed.
type Catalog struct {
	revision int64
	groups   byName[*group]
	order

	noSelectable bool // ignore the selectable fields of CRDs
}

// Revision returns the newest revision of a CRD or APIService in the catalog.
func (c *Catalog) Revision() int64 { return c.revision }

// named is an entry of a list that is sorted by name. The list contains the names themselves, so that a search
// reads no other memory.
type named[T any] struct {
	name  string
	value T
}

type byName[T any] []named[T]

// find returns the index of a name, or the index at which to insert it.
func (l byName[T]) find(name string) (index int, found bool) {
	from, to := 0, len(l)
	for from < to {
		if mid := (from + to) / 2; l[mid].name < name {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from, from < len(l) && l[from].name == name
}

// Find returns the version that this server serves at a request path, or nil.
func (c *Catalog) Find(group, version, plural string) *resource.Version {
	v, _ := c.Route(group, version, plural)
	return v
}

// Route returns the server of a request path. local is set if this server serves the version. aggregated is set if
// an aggregated API server does. Both are nil if the path is not served.
func (c *Catalog) Route(group, version, plural string) (local *resource.Version, aggregated *APIService) {
	i, ok := c.groups.find(group)
	if !ok {
		return nil, nil
	}
	g := c.groups[i].value
	if len(g.aggregated) > 0 {
		if aggregated = g.aggregatedVersion(version); aggregated != nil {
			return nil, aggregated
		}
	}
	if i, ok = g.kinds.find(plural); !ok {
		return nil, nil
	}
	for _, v := range g.kinds[i].value.Versions {
		if v.Served && v.GroupVersion.Version == version && v.GroupVersion.Group == group {
			return v, nil
		}
	}
	return nil, nil
}

// Definition returns the kind with the given group and plural, or nil. The kind may be a CRD that is not
// established.
func (c *Catalog) Definition(group, plural string) *resource.Definition {
	return kindIn(c.groups, group, plural)
}

func kindIn(groups byName[*group], group, plural string) *resource.Definition {
	i, ok := groups.find(group)
	if !ok {
		return nil
	}
	kinds := groups[i].value.kinds
	if i, ok = kinds.find(plural); !ok {
		return nil
	}
	return kinds[i].value
}

// LocalGroup returns information about a group. builtin reports whether the group has built-in kinds. served
// reports whether this server serves any kind at the given version of the group.
func (c *Catalog) LocalGroup(group, version string) (builtin, served bool) {
	i, ok := c.groups.find(group)
	if !ok {
		return false, false
	}
	for _, kind := range c.groups[i].value.kinds {
		for _, v := range kind.value.Versions {
			if v.Served && v.GroupVersion.Group == group {
				builtin = builtin || kind.value.Routing == resource.HandlerPerPath
				served = served || v.GroupVersion.Version == version
			}
		}
	}
	return builtin, served
}

// Definitions yields every kind, ordered by group and plural.
func (c *Catalog) Definitions() iter.Seq[*resource.Definition] {
	return func(yield func(*resource.Definition) bool) {
		for _, g := range c.groups {
			for _, d := range g.value.kinds {
				if d.value.Group == g.name && !yield(d.value) {
					return
				}
			}
		}
	}
}

// Group describes one API group for discovery.
type Group struct {
	Name       string
	Versions   []string // served versions, by priority
	Preferred  string
	Resources  map[string][]*resource.Version // by version, ordered by plural
	Aggregated []*APIService                  // aggregated versions, which are in Versions but not in Resources
}

// Groups yields the served groups in the order of discovery, which is by priority and name. The groups of CRDs all
// have the same priority. Groups are shared, so callers must not modify them.
func (c *Catalog) Groups() iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		for i := range c.inOrder() {
			if g := c.groups[i].value.discovery(); g != nil && !yield(g) {
				return
			}
		}
	}
}

// inOrder yields the indexes of groups in the order of discovery.
func (c *Catalog) inOrder() iter.Seq[int] {
	return func(yield func(int) bool) {
		listed := make([]int, 0, len(c.first)+len(c.last)) // groups in first or last
		indexes := func(names []string) (found []int) {
			for _, name := range names {
				if i, ok := c.groups.find(name); ok {
					found = append(found, i)
				}
			}
			listed = append(listed, found...)
			return found
		}
		first, last := indexes(c.first), indexes(c.last)
		slices.Sort(listed)
		for _, i := range first {
			if !yield(i) {
				return
			}
		}
		for i := range c.groups {
			if len(listed) > 0 && listed[0] == i {
				listed = listed[1:]
			} else if !yield(i) {
				return
			}
		}
		for _, i := range last {
			if !yield(i) {
				return
			}
		}
	}
}

// newCatalog returns a catalog with only the built-in kinds.
func newCatalog(builtins []*resource.Definition) *Catalog {
	e := edit{}
	for _, d := range builtins {
		for _, v := range d.Versions {
			e.setKind(v.GroupVersion.Group, d)
		}
	}
	return &Catalog{groups: e.groups, order: discoveryOrder(e.groups)}
}

// withChanges returns the catalog after changes of CRDs and APIServices, which are in the order of their revisions.
func (c *Catalog) withChanges(changes []*storage.Event) *Catalog {
	return c.modified(func(e *edit, next *Catalog) {
		for _, ev := range changes {
			next.revision = max(next.revision, ev.Revision)
			e.apply(ev.Key, ev.Record)
		}
	})
}

// withRecords returns c with all CRDs and APIServices of a snapshot.
func (c *Catalog) withRecords(records ...iter.Seq[*storage.Record]) *Catalog {
	return c.modified(func(e *edit, next *Catalog) {
		for _, all := range records {
			for r := range all {
				next.revision = max(next.revision, r.Modified)
				e.apply(r.Key, r)
			}
		}
	})
}

func (c *Catalog) modified(modify func(*edit, *Catalog)) *Catalog {
	next := *c
	e := edit{groups: slices.Clone(c.groups), noSelectable: c.noSelectable}
	modify(&e, &next)
	next.groups = e.groups
	if e.reorder {
		next.order = discoveryOrder(next.groups)
	}
	return &next
}

// edit is a change of a list of groups. It may modify the list and the groups in the field owned.
type edit struct {
	groups byName[*group]
	owned  map[string]bool

	noSelectable bool
	reorder      bool // priorities have changed
}

// apply applies the state of one CRD or APIService. A nil record means that it is deleted.
func (e *edit) apply(key string, r *storage.Record) {
	if strings.HasPrefix(key, APIServicePrefix) {
		e.applyAPIService(key, r)
		return
	}
	name := strings.TrimPrefix(key, definition.CRDPrefix)
	plural, groupName, _ := strings.Cut(name, ".")
	old := kindIn(e.groups, groupName, plural)
	if old != nil && old.Custom == nil {
		return // a CRD never replaces a built-in kind
	}
	var d *resource.Definition
	if r != nil {
		d = definition.FromCRD(r)
	}
	if d == nil || d.Group != groupName || d.Names.Plural != plural {
		if old != nil {
			e.removeKind(groupName, plural)
		}
		return
	}
	if e.noSelectable {
		for _, v := range d.Versions {
			v.SelectableFields = nil
		}
	}
	d.Custom.ConversionSince = r.Modified
	if old != nil && old.Custom.Conversion == d.Custom.Conversion {
		d.Custom.ConversionSince = old.Custom.ConversionSince
	}
	e.setKind(groupName, d)
}

// setKind adds a kind to a group or replaces the kind with the same plural.
func (e *edit) setKind(groupName string, d *resource.Definition) {
	g := e.mutableGroup(groupName)
	i, ok := g.kinds.find(d.Names.Plural)
	e.reorder = e.reorder || len(g.aggregated) > 0
	if !ok {
		g.kinds = slices.Insert(g.kinds, i, named[*resource.Definition]{})
	}
	g.kinds[i] = named[*resource.Definition]{d.Names.Plural, d}
}

func (e *edit) removeKind(groupName, plural string) {
	g := e.mutableGroup(groupName)
	at, _ := g.kinds.find(plural)
	g.kinds = slices.Delete(g.kinds, at, at+1)
	e.reorder = e.reorder || len(g.aggregated) > 0
	e.removeIfEmpty(groupName)
}

// removeIfEmpty removes a group that has neither kinds nor aggregated versions.
func (e *edit) removeIfEmpty(groupName string) {
	i, ok := e.groups.find(groupName)
	if ok && len(e.groups[i].value.kinds) == 0 && len(e.groups[i].value.aggregated) == 0 {
		e.groups = slices.Delete(e.groups, i, i+1)
		delete(e.owned, groupName)
	}
}

// mutableGroup returns a group that the edit owns. It creates or copies the group if necessary.
func (e *edit) mutableGroup(name string) *group {
	i, ok := e.groups.find(name)
	if !ok {
		e.groups = slices.Insert(e.groups, i, named[*group]{name, &group{name: name}})
	} else if !e.owned[name] {
		old := e.groups[i].value
		e.groups[i].value = &group{name: name, kinds: slices.Clone(old.kinds), aggregated: slices.Clone(old.aggregated)}
	}
	if e.owned == nil {
		e.owned = map[string]bool{}
	}
	e.owned[name] = true
	return e.groups[i].value
}

// NameOwner is a kind that has reserved names in a group.
type NameOwner struct {
	resource.Names
	Key      string // storage key of the CRD, "" for a built-in kind
	Revision int64  // revision of the CRD's last change, 0 for a built-in kind
}

// NameOwners yields the owners of names in a group. The names of a CRD are its accepted names, even if the CRD is
// not established.
func (c *Catalog) NameOwners(groupName string) iter.Seq[NameOwner] {
	return func(yield func(NameOwner) bool) {
		i, ok := c.groups.find(groupName)
		if !ok {
			return
		}
		for _, kind := range c.groups[i].value.kinds {
			if !yield(nameOwner(kind.value)) {
				return
			}
		}
	}
}

func nameOwner(d *resource.Definition) NameOwner {
	if c := d.Custom; c != nil {
		return NameOwner{c.Accepted, c.Key, c.Revision}
	}
	return NameOwner{Names: d.Names}
}

// AcceptedNames returns the accepted names of a CRD. The result is empty if the CRD does not exist.
func (c *Catalog) AcceptedNames(group, plural string) resource.Names {
	if d := c.Definition(group, plural); d != nil {
		if o := nameOwner(d); o.Key != "" {
			return o.Names
		}
	}
	return resource.Names{}
}
