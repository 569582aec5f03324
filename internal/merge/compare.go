package merge

import (
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/trellis-k8s/trellis/internal/object"
)

// comparison finds the differences between two values of the same type. It walks the schema once. The result equals
// the result of Compare in structured-merge-diff. The new value must match the schema.
type comparison struct {
	schemaMatcher
	changed bool // the values differ, or only the order of a list differs
	// unsupported means that only structured-merge-diff can compare the values. This is the case if an old value
	// does not match the schema, or a list has repeated items. The comparison then has no result.
	unsupported bool
}

// side specifies which of the two objects contain a value.
type side uint8

const (
	both side = iota
	oldOnly
	newOnly
)

// changes holds the fields that a write removes, and the fields that it adds or sets.
type changes struct{ removed, written fieldpath.Set }

// compare returns the difference between the objects live and obj. ok is false if only structured-merge-diff can
// compare them.
func (s schemaMatcher) compare(live, obj object.Tree, ref schema.TypeRef) (d *difference, ok bool) {
	c := comparison{schemaMatcher: s}
	written, below := c.value(live, obj, both, ref)
	if c.unsupported || written {
		return nil, false
	}
	return &difference{&below.removed, &below.written, !c.changed}, true
}

// value compares the old value l with the new value r. Unless at is both, one of them is nil. written reports
// whether the write has changed the field itself. below holds the changes below the field.
func (c *comparison) value(l, r any, at side, ref schema.TypeRef) (written bool, below changes) {
	if at != both {
		c.changed = true
	}
	atom, ok := c.Resolve(ref)
	if !ok || l != nil && r != nil && kindOf(l) != kindOf(r) {
		c.unsupported = true
		return false, below
	}
	switch m, list := atom.Map, atom.List; max(kindOf(l), kindOf(r)) { // a null is treated as a missing value
	case trees:
		x, _ := l.(object.Tree)
		y, _ := r.(object.Tree)
		if m != nil && m.ElementRelationship != schema.Atomic && len(x)+len(y) > 0 {
			return false, c.fields(x, y, at, m)
		}
	case lists:
		x, _ := l.([]any)
		y, _ := r.([]any)
		if list != nil && list.ElementRelationship != schema.Atomic && len(x)+len(y) > 0 {
			return false, c.items(x, y, at, list)
		}
	}
	if at != both || equalValues(l, r) {
		return false, below
	}
	c.changed = true
	c.unsupported = c.unsupported || !c.schemaMatcher.value(l, ref)
	return true, below
}

// equalValues reports whether structured-merge-diff considers two values equal. It considers 1 and 1.0 equal.
func equalValues(l, r any) bool {
	return object.Equal(l, r) || value.Equals(value.NewValueInterface(l), value.NewValueInterface(r))
}

// valueKind is the kind of a value. It is as detailed as schemas require.
type valueKind uint8

const (
	scalars valueKind = iota // a scalar or null
	lists
	trees
)

func kindOf(v any) valueKind {
	switch v.(type) {
	case object.Tree:
		return trees
	case []any:
		return lists
	}
	return scalars
}

func (c *comparison) fields(l, r object.Tree, at side, m *schema.Map) changes {
	var found fieldChanges
	if at == newOnly {
		found = make(fieldChanges, 0, len(r))
	}
	typeOf := func(key string) schema.TypeRef {
		if f, ok := m.FindField(key); ok {
			return f.Type
		}
		return m.ElementType
	}
	element := func(key string) fieldpath.PathElement { return fieldpath.PathElement{FieldName: &key} }
	for key, y := range r {
		x, inOld := l[key]
		switch {
		case inOld:
			written, below := c.value(x, y, both, typeOf(key))
			found.add(written, below, func() fieldpath.PathElement { return element(key) })
		default:
			_, below := c.value(nil, y, newOnly, typeOf(key))
			found.add(true, below, func() fieldpath.PathElement { return element(key) })
		}
	}
	for key, x := range l {
		if _, inNew := r[key]; inNew {
			continue
		}
		ref := typeOf(key)
		c.checkRemoved(x, at, ref)
		_, below := c.value(x, nil, oldOnly, ref)
		found.remove(below, element(key))
	}
	return found.sets()
}

// checkRemoved checks that a removed value matches the schema. It checks only the topmost removed value, which
// includes all values below.
func (c *comparison) checkRemoved(x any, at side, ref schema.TypeRef) {
	c.unsupported = c.unsupported || at == both && (ref == schema.TypeRef{} || !c.schemaMatcher.value(x, ref))
}

// fieldChange is the change of a field or list item, and the changes below it.
type fieldChange struct {
	element          fieldpath.PathElement
	written, removed bool
	below            changes
}

// fieldChanges are the changes in one object or list. Their order does not matter.
type fieldChanges []fieldChange

// add adds a field if the field itself or a value below it differs.
func (d *fieldChanges) add(written bool, below changes, element func() fieldpath.PathElement) {
	if written || !below.written.Empty() || !below.removed.Empty() {
		*d = append(*d, fieldChange{element: element(), written: written, below: below})
	}
}

// remove adds a removed field.
func (d *fieldChanges) remove(below changes, at fieldpath.PathElement) {
	*d = append(*d, fieldChange{element: at, removed: true, below: below})
}

// sets converts the changes to field sets. It inserts them in sorted order, because other insertions take more time
// for a larger set.
func (d fieldChanges) sets() (out changes) {
	slices.SortFunc(d, func(a, b fieldChange) int { return a.element.Compare(b.element) })
	if len(d) > 0 && d[0].written {
		out.written.Members = fieldpath.MakePathElementSet(len(d))
	}
	for i := range d {
		change := &d[i]
		if change.written {
			out.written.Members.Insert(change.element)
		}
		if change.removed {
			out.removed.Members.Insert(change.element)
		}
		if !change.below.written.Empty() {
			*out.written.Children.Descend(change.element) = change.below.written
		}
		if !change.below.removed.Empty() {
			*out.removed.Children.Descend(change.element) = change.below.removed
		}
	}
	return out
}

// items compares two lists. Their schema type is a set or a list of maps with keys.
func (c *comparison) items(l, r []any, at side, of *schema.List) changes {
	if at == both {
		if equalValues(l, r) {
			return changes{}
		}
		c.changed = true
	}
	oldItems := c.itemsByKey(l, of)
	newItems := c.itemsByKey(r, of)
	if c.unsupported {
		return changes{}
	}
	var found fieldChanges
	for id, y := range newItems {
		element := func() fieldpath.PathElement { return itemElement(y, of.Keys) }
		if x, inOld := oldItems[id]; inOld {
			written, below := c.value(x, y, both, of.ElementType)
			found.add(written, below, element)
			continue
		}
		_, below := c.value(nil, y, newOnly, of.ElementType)
		found.add(true, below, element)
	}
	for id, x := range oldItems {
		if _, inNew := newItems[id]; inNew {
			continue
		}
		c.checkRemoved(x, at, of.ElementType)
		_, below := c.value(x, nil, oldOnly, of.ElementType)
		found.remove(below, itemElement(x, of.Keys))
	}
	return found.sets()
}

func (c *comparison) itemsByKey(list []any, of *schema.List) map[string]any {
	all := make(map[string]any, len(list))
	for _, v := range list {
		id, ok := itemKey(v, of.Keys)
		if _, repeated := all[id]; repeated || !ok {
			c.unsupported = true
			return nil
		}
		all[id] = v
	}
	return all
}

// itemElement returns the path element of a list item. For a set, whose items have no keys, the element is the item
// itself.
func itemElement(v any, keys []string) fieldpath.PathElement {
	t, _ := v.(object.Tree)
	if len(keys) == 0 {
		scalar := value.NewValueInterface(v)
		return fieldpath.PathElement{Value: &scalar}
	}
	fields := make(value.FieldList, len(keys))
	for i, key := range keys {
		fields[i] = value.Field{Name: key, Value: value.NewValueInterface(t[key])}
	}
	fields.Sort()
	return fieldpath.PathElement{Key: &fields}
}
