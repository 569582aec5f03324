package merge

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	managedFields   = "managedFields"
	operationApply  = "Apply"
	operationUpdate = "Update"
	ancientChanges  = "ancient-changes"
	// maxUpdateManagers is how many entries of updates are kept apart.
	maxUpdateManagers = 10
)

// owner is one entry of managedFields without its fields. For an applier its
// version is no part of who it is.
type owner struct {
	manager, operation, apiVersion, subresource string
	time                                        string // "" if it has none
	// raw is the entry as it was read and read what it said, so that an entry
	// that does not change is not written again; nil if raw is not in canonical form.
	raw  object.Tree
	read fieldpath.VersionedSet
}

// id names an owner as upstream does, for ties are broken by these names.
func (o owner) id() string {
	b := append(make([]byte, 0, 96), '{')
	text := func(key, value string) {
		if value == "" {
			return
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), key...), `":`...)
		b = object.AppendJSON(b, value)
	}
	text("manager", o.manager)
	text("operation", o.operation)
	if o.operation != operationApply {
		text("apiVersion", o.apiVersion)
	}
	text("subresource", o.subresource)
	return string(append(b, '}'))
}

func (o *owner) seconds() int64 {
	if o.time == "" {
		return 0
	}
	t, err := time.Parse(time.RFC3339, o.time)
	if err != nil {
		return 0
	}
	return t.Unix()
}

// owners are the entries of managedFields by their owners' ids. Where a set has
// no owner of the same id there is a mistake; the other way round it is no longer used.
type owners struct {
	sets   fieldpath.ManagedFields
	owners map[string]*owner
}

func newOwners(n int) *owners {
	return &owners{sets: make(fieldpath.ManagedFields, n), owners: make(map[string]*owner, n)}
}

func (o *owners) clone() *owners {
	out := &owners{sets: o.sets.Copy(), owners: make(map[string]*owner, len(o.owners)+1)}
	for id, who := range o.owners {
		c := *who
		out.owners[id] = &c
	}
	return out
}

// add makes sure that an owner is known and returns its id.
func (o *owners) add(who owner) string {
	id := who.id()
	if o.owners[id] == nil {
		o.owners[id] = &who
	}
	return id
}

// strip takes from an owner what nobody owns.
func (o *owners) strip(id string) {
	vs, ok := o.sets[id]
	if !ok {
		return
	}
	set := vs.Set().Difference(stripped)
	if set.Empty() {
		delete(o.sets, id)
		return
	}
	o.put(id, set, vs.APIVersion(), vs.Applied())
}

// put gives an owner a set: where that is what its entry says already, the very one
// that was read, so that it is not written anew.
func (o *owners) put(id string, set *fieldpath.Set, version fieldpath.APIVersion, applied bool) {
	if who := o.owners[id]; who != nil && who.read != nil {
		read := who.read
		if read.APIVersion() == version && read.Applied() == applied && read.Set().Equals(set) {
			o.sets[id] = read
			return
		}
	}
	o.sets[id] = fieldpath.NewVersionedSet(set, version, applied)
}

// capUpdates merges the oldest entries of updates, those of one version into one
// entry, until no more than maxUpdateManagers are left.
func (o *owners) capUpdates() {
	var updaters []string
	for id, vs := range o.sets {
		if !vs.Applied() {
			updaters = append(updaters, id)
		}
	}
	left := len(updaters)
	if left <= maxUpdateManagers {
		return
	}
	slices.SortFunc(updaters, func(a, b string) int {
		return cmp.Or(cmp.Compare(o.owners[a].seconds(), o.owners[b].seconds()), cmp.Compare(a, b))
	})
	first := map[fieldpath.APIVersion]string{}
	parts := map[string][]*fieldpath.Set{} // of the entry of ancient changes, by its id
	for _, id := range updaters {
		if left <= maxUpdateManagers {
			break
		}
		vs := o.sets[id]
		version := vs.APIVersion()
		oldest, ok := first[version]
		if !ok {
			first[version] = id
			continue
		}
		bucket := o.add(owner{manager: ancientChanges, operation: operationUpdate, apiVersion: string(version)})
		if len(parts[bucket]) == 0 {
			if _, ok := o.sets[bucket]; !ok {
				o.sets[bucket] = o.sets[oldest]
				delete(o.sets, oldest)
			}
			parts[bucket] = append(parts[bucket], o.sets[bucket].Set())
		}
		parts[bucket] = append(parts[bucket], vs.Set())
		o.owners[bucket].time = o.owners[id].time
		delete(o.sets, id)
		if id == bucket {
			delete(parts, bucket)
		}
		left--
	}
	for bucket, sets := range parts {
		o.sets[bucket] = fieldpath.NewVersionedSet(union(sets), fieldpath.APIVersion(o.owners[bucket].apiVersion), false)
	}
}

// union returns the union of some sets. It merges sets of similar size, for each merge copies both.
func union(sets []*fieldpath.Set) *fieldpath.Set {
	if len(sets) == 1 {
		return sets[0]
	}
	half := len(sets) / 2
	return union(sets[:half]).Union(union(sets[half:]))
}

// encode puts the entries into meta, or removes managedFields if there are none.
func (o *owners) encode(meta object.Tree) {
	if len(o.sets) == 0 {
		delete(meta, managedFields)
		return
	}
	type row struct {
		*owner
		set     fieldpath.VersionedSet
		seconds int64
	}
	rows := make([]row, 0, len(o.sets))
	for id, vs := range o.sets {
		who := o.owners[id]
		who.apiVersion = string(vs.APIVersion())
		if vs.Applied() {
			who.operation = operationApply
		}
		rows = append(rows, row{who, vs, who.seconds()})
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.operation, b.operation), cmp.Compare(a.seconds, b.seconds), cmp.Compare(a.manager, b.manager),
			cmp.Compare(a.apiVersion, b.apiVersion), cmp.Compare(a.subresource, b.subresource))
	})
	list := make([]any, len(rows))
	for i, r := range rows {
		list[i] = r.entry(r.set)
	}
	meta[managedFields] = list
}

func (o *owner) entry(vs fieldpath.VersionedSet) object.Tree {
	unchanged := o.raw != nil && vs == o.read
	if unchanged && object.String(o.raw, "time") == o.time {
		return o.raw
	}
	e := make(object.Tree, 7)
	if unchanged {
		maps.Copy(e, o.raw)
	} else {
		e["fieldsV1"] = treeOf(vs.Set())
	}
	e["fieldsType"] = "FieldsV1"
	o.describe(e)
	return e
}

// describe writes into an entry all but its fields.
func (o *owner) describe(e object.Tree) {
	object.SetString(e, "manager", o.manager)
	object.SetString(e, "operation", o.operation)
	object.SetString(e, "apiVersion", o.apiVersion)
	object.SetString(e, "subresource", o.subresource)
	object.SetString(e, "time", o.time)
}

// isReset tells whether a client asks to forget all owners: by an empty list, or by a
// list of one empty entry.
func isReset(v any) bool {
	list, _ := v.([]any)
	if len(list) > 1 {
		return false
	}
	if len(list) == 1 { // mostly it is an entry, and there is no need to read it all
		if t, _ := list[0].(object.Tree); object.String(t, "manager") != "" {
			return false
		}
	}
	entries, ok := parseEntries(v)
	if !ok || entries == nil {
		return false
	}
	return len(entries) == 0 || len(entries) == 1 && entries[0].isZero()
}

// decodeOwners reads managedFields; nil gives no owners. The errors are upstream's.
func (f *ManagedFields) decodeOwners(v any) (*owners, error) {
	entries, ok := parseEntries(v)
	if !ok {
		return newOwners(1), nil
	}
	out := newOwners(len(entries) + 1)
	for i := range entries {
		e := &entries[i]
		if e.operation != operationApply && e.operation != operationUpdate {
			return nil, errors.New("operation must be `Apply` or `Update`")
		}
		if e.apiVersion == "" {
			return nil, errors.New("apiVersion must not be empty")
		}
		switch e.fieldsType {
		case "FieldsV1":
		case "":
			return nil, fmt.Errorf("missing fieldsType in managed fields entry %d", i)
		default:
			return nil, fmt.Errorf("invalid fieldsType %q in managed fields entry %d", e.fieldsType, i)
		}
		if err := out.decode(e); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (o *owners) decode(e *entry) error {
	set, canonical, err := setOf(e.fields)
	if err != nil {
		return fmt.Errorf("error decoding versioned set from %v: error decoding set: %w", e.owner.id(), err)
	}
	who := e.owner
	who.read = fieldpath.NewVersionedSet(set, fieldpath.APIVersion(e.apiVersion), e.operation == operationApply)
	if !canonical || !e.canonical {
		who.raw = nil
	}
	id := who.id()
	o.owners[id] = &who
	o.sets[id] = who.read
	return nil
}
