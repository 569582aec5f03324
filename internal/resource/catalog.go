package resource

import (
	"iter"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Catalog is all that is served at one moment. It is immutable; the next one shares
// the groups that have not changed.
type Catalog struct {
	revision int64
	groups   byName[*group]
	order

	noSelectable bool // CRDs are read without their selectable fields
}

// Revision is the newest revision of a CRD that the catalog knows of.
func (c *Catalog) Revision() int64 { return c.revision }

// named is an entry of a list that is sorted by name. The names lie in the list, so that looking
// for one reads nothing else.
type named[T any] struct {
	name string
	is   T
}

type byName[T any] []named[T]

// find returns the place of a name, or where it would go.
func (l byName[T]) find(name string) (place int, found bool) {
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
func (c *Catalog) Find(group, version, plural string) *Version {
	v, _ := c.Route(group, version, plural)
	return v
}

// Route returns who serves a request path: this server, a version; or another one, whose group version it is. Both may be nil.
func (c *Catalog) Route(group, version, plural string) (ours *Version, theirs *APIService) {
	i, ok := c.groups.find(group)
	if !ok {
		return nil, nil
	}
	g := c.groups[i].is
	if len(g.theirs) > 0 {
		if theirs = g.theirsAt(version); theirs != nil {
			return nil, theirs
		}
	}
	if i, ok = g.kinds.find(plural); !ok {
		return nil, nil
	}
	for _, v := range g.kinds[i].is.Versions {
		if v.Served && v.GroupVersion.Version == version && v.GroupVersion.Group == group {
			return v, nil
		}
	}
	return nil, nil
}

// Definition returns the kind that holds plural in group, or nil; established or not.
func (c *Catalog) Definition(group, plural string) *Definition {
	i, ok := c.groups.find(group)
	if !ok {
		return nil
	}
	kinds := c.groups[i].is.kinds
	if i, ok = kinds.find(plural); !ok {
		return nil
	}
	return kinds[i].is
}

// LocalGroup says whether built-in kinds are served in a group, and whether any kind is at a version of it.
func (c *Catalog) LocalGroup(group, version string) (native, served bool) {
	i, ok := c.groups.find(group)
	if !ok {
		return false, false
	}
	for _, kind := range c.groups[i].is.kinds {
		for _, v := range kind.is.Versions {
			if v.Served && v.GroupVersion.Group == group {
				native = native || kind.is.Custom == nil
				served = served || v.GroupVersion.Version == version
			}
		}
	}
	return native, served
}

// Definitions yields every kind, ordered by group and plural.
func (c *Catalog) Definitions() iter.Seq[*Definition] {
	return func(yield func(*Definition) bool) {
		for _, g := range c.groups {
			for _, d := range g.is.kinds {
				if d.is.Group == g.name && !yield(d.is) {
					return
				}
			}
		}
	}
}

// Group is what discovery says of a group.
type Group struct {
	Name       string
	Versions   []string // served, by priority
	Preferred  string
	Resources  map[string][]*Version // per version name, ordered by plural
	Aggregated []*APIService         // whose versions are among them, and have no Resources
}

// Groups yields the served groups in the order of discovery: by their priority, which
// the groups of CRDs all have the same of, and by name. They are shared:
// callers do not modify them.
func (c *Catalog) Groups() iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		for i := range c.inOrder() {
			if g := c.groups[i].is.served(); g != nil && !yield(g) {
				return
			}
		}
	}
}

// inOrder yields the indexes of groups, in the order of discovery.
func (c *Catalog) inOrder() iter.Seq[int] {
	return func(yield func(int) bool) {
		apart := make([]int, 0, len(c.first)+len(c.last))
		places := func(names []string) (of []int) {
			for _, name := range names {
				if i, ok := c.groups.find(name); ok {
					of = append(of, i)
				}
			}
			apart = append(apart, of...)
			return of
		}
		first, last := places(c.first), places(c.last)
		slices.Sort(apart)
		for _, i := range first {
			if !yield(i) {
				return
			}
		}
		for i := range c.groups {
			if len(apart) > 0 && apart[0] == i {
				apart = apart[1:]
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

// newCatalog has the built-in kinds alone.
func newCatalog(builtins []*Definition) *Catalog {
	e := edit{}
	for _, d := range builtins {
		for _, v := range d.Versions {
			e.put(v.GroupVersion.Group, d)
		}
	}
	return &Catalog{groups: e.groups, order: discoveryOrder(e.groups)}
}

// with is c after some changes of CRDs and APIServices, in the order of their revisions.
func (c *Catalog) with(changes []*storage.Event) *Catalog {
	return c.edited(func(e *edit, next *Catalog) {
		for _, ev := range changes {
			next.revision = max(next.revision, ev.Revision)
			e.change(ev.Key, ev.Record)
		}
	})
}

// withRecords is c with all CRDs and APIServices of a snapshot.
func (c *Catalog) withRecords(records ...iter.Seq[*storage.Record]) *Catalog {
	return c.edited(func(e *edit, next *Catalog) {
		for _, all := range records {
			for r := range all {
				next.revision = max(next.revision, r.Modified)
				e.change(r.Key, r)
			}
		}
	})
}

func (c *Catalog) edited(by func(*edit, *Catalog)) *Catalog {
	next := *c
	e := edit{groups: slices.Clone(c.groups), noSelectable: c.noSelectable}
	by(&e, &next)
	next.groups = e.groups
	if e.reorder {
		next.order = discoveryOrder(next.groups)
	}
	return &next
}

// edit changes a list of groups of which it owns the slice, and each group once it is
// in own.
type edit struct {
	groups byName[*group]
	own    map[string]bool

	noSelectable bool
	reorder      bool // priorities have changed
}

// change makes the state of one CRD or APIService known; a nil record means that it is gone.
func (e *edit) change(key string, r *storage.Record) {
	if strings.HasPrefix(key, APIServicePrefix) {
		e.serve(key, r)
		return
	}
	name := strings.TrimPrefix(key, CRDPrefix)
	plural, groupName, _ := strings.Cut(name, ".")
	var d *Definition
	if r != nil {
		d = FromCRD(r)
	}
	if d == nil || d.Group != groupName || d.Names.Plural != plural {
		e.remove(groupName, plural)
		return
	}
	if e.noSelectable {
		for _, v := range d.Versions {
			v.SelectableFields = nil
		}
	}
	d.Custom.ConversionSince = r.Modified
	if old := e.custom(groupName, plural); old != nil && old.Conversion == d.Custom.Conversion {
		d.Custom.ConversionSince = old.ConversionSince
	}
	e.put(groupName, d)
}

// custom returns what is known of a CRD so far, nil if nothing is.
func (e *edit) custom(groupName, plural string) *Custom {
	if i, ok := e.groups.find(groupName); ok {
		if at, ok := e.groups[i].is.kinds.find(plural); ok {
			return e.groups[i].is.kinds[at].is.Custom
		}
	}
	return nil
}

// put adds a kind to a group, in place of another of its plural. A built-in kind
// is never replaced by a custom one.
func (e *edit) put(groupName string, d *Definition) {
	g := e.writable(groupName)
	i, ok := g.kinds.find(d.Names.Plural)
	e.reorder = e.reorder || len(g.theirs) > 0
	switch {
	case !ok:
		g.kinds = slices.Insert(g.kinds, i, named[*Definition]{d.Names.Plural, d})
	case d.Custom == nil || g.kinds[i].is.Custom != nil:
		g.kinds[i].is = d
	}
}

func (e *edit) remove(groupName, plural string) {
	if e.custom(groupName, plural) == nil {
		return
	}
	g := e.writable(groupName)
	at, _ := g.kinds.find(plural)
	g.kinds = slices.Delete(g.kinds, at, at+1)
	e.reorder = e.reorder || len(g.theirs) > 0
	e.drop(groupName)
}

// drop forgets a group in which there is nothing.
func (e *edit) drop(groupName string) {
	if i, ok := e.groups.find(groupName); ok && len(e.groups[i].is.kinds) == 0 && len(e.groups[i].is.theirs) == 0 {
		e.groups = slices.Delete(e.groups, i, i+1)
		delete(e.own, groupName)
	}
}

// writable returns a group that nobody else has, made if need be.
func (e *edit) writable(name string) *group {
	i, ok := e.groups.find(name)
	if !ok {
		e.groups = slices.Insert(e.groups, i, named[*group]{name, &group{name: name}})
	} else if !e.own[name] {
		e.groups[i].is = &group{name: name, kinds: slices.Clone(e.groups[i].is.kinds), theirs: slices.Clone(e.groups[i].is.theirs)}
	}
	if e.own == nil {
		e.own = map[string]bool{}
	}
	e.own[name] = true
	return e.groups[i].is
}

// NameOwner is a kind that holds names in a group.
type NameOwner struct {
	Names
	Key      string // of the CRD and
	Revision int64  // its Modified; "" and 0 for a built-in kind
}

// NameOwners yields who holds names in a group: the accepted names of each CRD, established or
// not, and those of the built-in kinds.
func (c *Catalog) NameOwners(groupName string) iter.Seq[NameOwner] {
	return func(yield func(NameOwner) bool) {
		i, ok := c.groups.find(groupName)
		if !ok {
			return
		}
		for _, kind := range c.groups[i].is.kinds {
			d := kind.is
			h := NameOwner{Names: d.Names}
			if d.Custom != nil {
				h = NameOwner{d.Custom.accepted, d.Custom.Key, d.Custom.Revision}
			}
			if !yield(h) {
				return
			}
		}
	}
}

// AcceptedNames returns the names that a CRD has been given; none if there is no such CRD.
func (c *Catalog) AcceptedNames(group, plural string) Names {
	if d := c.Definition(group, plural); d != nil && d.Custom != nil {
		return d.Custom.accepted
	}
	return Names{}
}
