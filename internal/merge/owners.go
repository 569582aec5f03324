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
	// maxUpdateManagers is the maximum number of separate entries for updates.
	maxUpdateManagers = 10
)

// owner is one entry of managedFields without its fields. apiVersion is not part of the identity of an applier.
type owner struct {
	manager, operation, apiVersion, subresource string
	time                                        string // "" if the entry has no time
	// raw is the decoded entry. If the entry is unchanged, it need not be encoded again. raw is nil if the decoded
	// entry was not in canonical form.
	raw  object.Tree
	read fieldpath.VersionedSet // field set of the decoded entry
}

// id returns upstream's identifier for an owner. If entries are otherwise equal in the sort order, they are ordered
// by these identifiers.
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

// owners holds the entries of managedFields by the identifiers of their owners. Each set must have an owner. An
// owner without a set is no longer used.
type owners struct {
	sets   fieldpath.ManagedFields
	owners map[string]*owner
}

func newOwners(n int) *owners {
	return &owners{sets: make(fieldpath.ManagedFields, n), owners: make(map[string]*owner, n)}
}

func (o *owners) clone() *owners {
	out := &owners{sets: o.sets.Copy(), owners: make(map[string]*owner, len(o.owners)+1)}
	for id, mgr := range o.owners {
		c := *mgr
		out.owners[id] = &c
	}
	return out
}

// add adds an owner if its identifier is new. It returns the identifier.
func (o *owners) add(mgr owner) string {
	id := mgr.id()
	if o.owners[id] == nil {
		o.owners[id] = &mgr
	}
	return id
}

// dropNeverOwned removes the fields in neverOwned from an owner's set.
func (o *owners) dropNeverOwned(id string) {
	vs, ok := o.sets[id]
	if !ok {
		return
	}
	set := vs.Set().Difference(neverOwned)
	if set.Empty() {
		delete(o.sets, id)
		return
	}
	o.setFields(id, set, vs.APIVersion(), vs.Applied())
}

// setFields sets the field set of an owner. If the decoded set is equal to set, it keeps the decoded set, so that
// the entry need not be encoded again.
func (o *owners) setFields(id string, set *fieldpath.Set, version fieldpath.APIVersion, applied bool) {
	if mgr := o.owners[id]; mgr != nil && mgr.read != nil {
		read := mgr.read
		if read.APIVersion() == version && read.Applied() == applied && read.Set().Equals(set) {
			o.sets[id] = read
			return
		}
	}
	o.sets[id] = fieldpath.NewVersionedSet(set, version, applied)
}

// capUpdates limits the number of entries for updates to maxUpdateManagers. It merges the oldest entries of each
// version into one entry.
func (o *owners) capUpdates() {
	var updaters []string
	for id, vs := range o.sets {
		if !vs.Applied() {
			updaters = append(updaters, id)
		}
	}
	remaining := len(updaters)
	if remaining <= maxUpdateManagers {
		return
	}
	slices.SortFunc(updaters, func(a, b string) int {
		return cmp.Or(cmp.Compare(o.owners[a].seconds(), o.owners[b].seconds()), cmp.Compare(a, b))
	})
	first := map[fieldpath.APIVersion]string{}
	parts := map[string][]*fieldpath.Set{} // sets to merge into an "ancient-changes" entry, by its identifier
	for _, id := range updaters {
		if remaining <= maxUpdateManagers {
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
		remaining--
	}
	for bucket, sets := range parts {
		version := fieldpath.APIVersion(o.owners[bucket].apiVersion)
		o.sets[bucket] = fieldpath.NewVersionedSet(union(sets), version, false)
	}
}

// union returns the union of sets. It merges sets of similar size, because each merge copies both.
func union(sets []*fieldpath.Set) *fieldpath.Set {
	if len(sets) == 1 {
		return sets[0]
	}
	half := len(sets) / 2
	return union(sets[:half]).Union(union(sets[half:]))
}

// encode writes the entries to meta. It removes managedFields if there are no entries.
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
		mgr := o.owners[id]
		mgr.apiVersion = string(vs.APIVersion())
		if vs.Applied() {
			mgr.operation = operationApply
		}
		rows = append(rows, row{mgr, vs, mgr.seconds()})
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(
			cmp.Compare(a.operation, b.operation), cmp.Compare(a.seconds, b.seconds),
			cmp.Compare(a.manager, b.manager), cmp.Compare(a.apiVersion, b.apiVersion),
			cmp.Compare(a.subresource, b.subresource))
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
		e["fieldsV1"] = encodeSet(vs.Set())
	}
	e["fieldsType"] = "FieldsV1"
	o.describe(e)
	return e
}

// describe writes all members of an entry except its fields.
func (o *owner) describe(e object.Tree) {
	object.SetString(e, "manager", o.manager)
	object.SetString(e, "operation", o.operation)
	object.SetString(e, "apiVersion", o.apiVersion)
	object.SetString(e, "subresource", o.subresource)
	object.SetString(e, "time", o.time)
}

// isReset reports whether managedFields sent by a client request the removal of all entries. The request is an
// empty list or a list of one empty entry.
func isReset(v any) bool {
	list, _ := v.([]any)
	if len(list) > 1 {
		return false
	}
	if len(list) == 1 { // usually a normal entry: do not decode all of it
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

// decodeOwners decodes managedFields. If v is nil, the result has no owners. Errors equal upstream's.
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
	set, canonical, err := decodeSet(e.fields)
	if err != nil {
		return fmt.Errorf("error decoding versioned set from %v: error decoding set: %w", e.owner.id(), err)
	}
	mgr := e.owner
	mgr.read = fieldpath.NewVersionedSet(set, fieldpath.APIVersion(e.apiVersion), e.operation == operationApply)
	if !canonical || !e.canonical {
		mgr.raw = nil
	}
	id := mgr.id()
	o.owners[id] = &mgr
	o.sets[id] = mgr.read
	return nil
}
