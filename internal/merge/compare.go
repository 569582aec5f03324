package merge

import (
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/trellis-k8s/trellis/internal/object"
)

// comparison finds what differs between two values of one type, as structured-merge-diff's Compare does, in one walk along the
// schema. The new value is known to suit the schema.
type comparison struct {
	suiting
	differs bool // something does, be it the order of a list alone
	// odd says that the walk has met what only structured-merge-diff knows what to do about: an old value that does not suit the
	// schema, or repeated items of a list. There is no result.
	odd bool
}

// side is where a value is found.
type side uint8

const (
	both  side = iota
	gone       // in the old object alone
	added      // in the new object alone
)

// changes are the fields that a write removes, and those that it adds or sets.
type changes struct{ removed, written fieldpath.Set }

// compare gives the difference between two objects of the kind. It is not ok where that has to be asked of structured-merge-diff.
func (s suiting) compare(live, obj object.Tree, ref schema.TypeRef) (d *difference, ok bool) {
	c := comparison{suiting: s}
	leaf, below := c.value(live, obj, both, ref)
	if c.odd || leaf {
		return nil, false
	}
	return &difference{&below.removed, &below.written, !c.differs}, true
}

// value compares two values, of which there is one where it is not on both sides. leaf says that the field itself was written,
// while both have it.
func (c *comparison) value(l, r any, at side, ref schema.TypeRef) (leaf bool, below changes) {
	if at != both {
		c.differs = true
	}
	atom, ok := c.Resolve(ref)
	if !ok || l != nil && r != nil && formOf(l) != formOf(r) {
		c.odd = true
		return false, below
	}
	switch m, list := atom.Map, atom.List; max(formOf(l), formOf(r)) { // null is as good as nothing
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
	if at != both || same(l, r) {
		return false, below
	}
	c.differs = true
	c.odd = c.odd || !c.suiting.value(l, ref)
	return true, below
}

// same compares as structured-merge-diff does, to which 1 and 1.0 are the same.
func same(l, r any) bool {
	return object.Equal(l, r) || value.Equals(value.NewValueInterface(l), value.NewValueInterface(r))
}

// form is what a value is, as far as a schema may treat it otherwise.
type form uint8

const (
	scalars form = iota // or null
	lists
	trees
)

func formOf(v any) form {
	switch v.(type) {
	case object.Tree:
		return trees
	case []any:
		return lists
	}
	return scalars
}

func (c *comparison) fields(l, r object.Tree, at side, m *schema.Map) changes {
	var found findings
	if at == added {
		found = make(findings, 0, len(r))
	}
	typeOf := func(key string) schema.TypeRef {
		if f, ok := m.FindField(key); ok {
			return f.Type
		}
		return m.ElementType
	}
	element := func(key string) fieldpath.PathElement { return fieldpath.PathElement{FieldName: &key} }
	for key, y := range r {
		x, known := l[key]
		switch {
		case known:
			leaf, below := c.value(x, y, both, typeOf(key))
			found.add(leaf, below, func() fieldpath.PathElement { return element(key) })
		default:
			_, below := c.value(nil, y, added, typeOf(key))
			found.add(true, below, func() fieldpath.PathElement { return element(key) })
		}
	}
	for key, x := range l {
		if _, still := r[key]; still {
			continue
		}
		ref := typeOf(key)
		c.lost(x, at, ref)
		_, below := c.value(x, nil, gone, ref)
		found.remove(below, element(key))
	}
	return found.changes()
}

// lost looks at a value that is gone. What lies below it has been looked at with it.
func (c *comparison) lost(x any, at side, ref schema.TypeRef) {
	c.odd = c.odd || at == both && (ref == schema.TypeRef{} || !c.suiting.value(x, ref))
}

// finding is what has become of a field or an item: whether it was written or is gone, and what lies below it.
type finding struct {
	at            fieldpath.PathElement
	written, gone bool
	below         changes
}

// findings are those of one object or list, in any order.
type findings []finding

// add puts in what differs in a field, if anything does.
func (d *findings) add(written bool, below changes, element func() fieldpath.PathElement) {
	if written || !below.written.Empty() || !below.removed.Empty() {
		*d = append(*d, finding{at: element(), written: written, below: below})
	}
}

// remove puts in a field that is gone.
func (d *findings) remove(below changes, at fieldpath.PathElement) {
	*d = append(*d, finding{at: at, gone: true, below: below})
}

// changes puts them into sets, in the order of these: a set takes time for what comes out of order that grows with its size.
func (d findings) changes() (out changes) {
	slices.SortFunc(d, func(a, b finding) int { return a.at.Compare(b.at) })
	if len(d) > 0 && d[0].written {
		out.written.Members = fieldpath.MakePathElementSet(len(d))
	}
	for i := range d {
		one := &d[i]
		if one.written {
			out.written.Members.Insert(one.at)
		}
		if one.gone {
			out.removed.Members.Insert(one.at)
		}
		if !one.below.written.Empty() {
			*out.written.Children.Descend(one.at) = one.below.written
		}
		if !one.below.removed.Empty() {
			*out.removed.Children.Descend(one.at) = one.below.removed
		}
	}
	return out
}

// items compares two sets, or lists of maps with keys.
func (c *comparison) items(l, r []any, at side, of *schema.List) changes {
	if at == both {
		if same(l, r) {
			return changes{}
		}
		c.differs = true
	}
	left := c.byIdentity(l, of)
	seen := c.byIdentity(r, of)
	if c.odd {
		return changes{}
	}
	var found findings
	for id, y := range seen {
		element := func() fieldpath.PathElement { return elementOf(y, of.Keys) }
		if x, known := left[id]; known {
			leaf, below := c.value(x, y, both, of.ElementType)
			found.add(leaf, below, element)
			continue
		}
		_, below := c.value(nil, y, added, of.ElementType)
		found.add(true, below, element)
	}
	for id, x := range left {
		if _, still := seen[id]; still {
			continue
		}
		c.lost(x, at, of.ElementType)
		_, below := c.value(x, nil, gone, of.ElementType)
		found.remove(below, elementOf(x, of.Keys))
	}
	return found.changes()
}

func (c *comparison) byIdentity(list []any, of *schema.List) map[string]any {
	all := make(map[string]any, len(list))
	for _, v := range list {
		id, ok := identity(v, of.Keys)
		if _, twice := all[id]; twice || !ok {
			c.odd = true
			return nil
		}
		all[id] = v
	}
	return all
}

// elementOf is what an item with an identity is called in a set of fields.
func elementOf(v any, keys []string) fieldpath.PathElement {
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
