package cel

import (
	"fmt"
	"reflect"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	celtraits "github.com/google/cel-go/common/types/traits"
	apicel "k8s.io/apiserver/pkg/cel"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// listView is the CEL value of a list.
type listView struct {
	n     *schema.Node // schema of the items
	items []any
}

func (l *listView) at(i int) ref.Val { return viewOf(l.n, l.items[i]) }

// Get implements traits.Indexer.
func (l *listView) Get(index ref.Val) ref.Val {
	i, ok := index.(types.Int)
	switch {
	case !ok:
		return types.ValOrErr(index, "unsupported index: %v", index)
	case i < 0 || int(i) >= len(l.items):
		return types.NewErr("index out of bounds: %v", index)
	}
	return l.at(int(i))
}

// Size implements traits.Sizer.
func (l *listView) Size() ref.Val { return types.Int(len(l.items)) }

// Iterator implements traits.Iterable.
func (l *listView) Iterator() celtraits.Iterator { return &iterator{size: len(l.items), at: l.at} }

// Contains implements traits.Container.
func (l *listView) Contains(v ref.Val) ref.Val {
	if types.IsUnknownOrError(v) {
		return v
	}
	var failed ref.Val
	for i := range l.items {
		equal := l.at(i).Equal(v)
		if equal == types.True {
			return types.True
		}
		if _, ok := equal.(types.Bool); !ok && failed == nil {
			failed = types.MaybeNoSuchOverloadErr(equal)
		}
	}
	if failed != nil {
		return failed
	}
	return types.False
}

// Equal implements ref.Val.
func (l *listView) Equal(other ref.Val) ref.Val {
	list, ok := other.(celtraits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	if l.Size() != list.Size() {
		return types.False
	}
	for i := range l.items {
		if equal := l.at(i).Equal(list.Get(types.Int(i))); equal != types.True {
			return equal
		}
	}
	return types.True
}

// Add implements traits.Adder.
func (l *listView) Add(other ref.Val) ref.Val {
	list, ok := other.(celtraits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	return types.NewRefValList(types.DefaultTypeAdapter, append(elements(l), elements(list)...))
}

// elements returns the items of any list.
func elements(l celtraits.Lister) []ref.Val {
	size, _ := l.Size().(types.Int)
	out := make([]ref.Val, 0, size)
	for it := l.Iterator(); it.HasNext() == types.True; {
		out = append(out, it.Next())
	}
	return out
}

// ConvertToNative implements ref.Val.
func (l *listView) ConvertToNative(t reflect.Type) (any, error) {
	if t.Kind() != reflect.Slice {
		return nil, fmt.Errorf("type conversion error from '%s' to '%s'", l.Type(), t)
	}
	if l.n.Type != "string" {
		return l.items, nil
	}
	var texts []string
	for _, v := range l.items {
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("expected all elements to be of type string, but got %T", v)
		}
		texts = append(texts, s)
	}
	return texts, nil
}

// ConvertToType implements ref.Val.
func (l *listView) ConvertToType(t ref.Type) ref.Val {
	switch t {
	case types.ListType:
		return l
	case types.TypeType:
		return types.ListType
	}
	return types.NewErr("type conversion error from '%s' to '%s'", l.Type(), t.TypeName())
}

// Type implements ref.Val.
func (l *listView) Type() ref.Type { return types.ListType }

// Value implements ref.Val.
func (l *listView) Value() any { return l.items }

// setView is a list with x-kubernetes-list-type=set. Comparisons ignore its order, and + returns the union.
type setView struct{ listView }

// Equal implements ref.Val.
func (s *setView) Equal(other ref.Val) ref.Val { return equalSets(s, other) }

// Add implements traits.Adder.
func (s *setView) Add(other ref.Val) ref.Val { return union(s, other) }

// unionSet is the result of + on a set.
type unionSet struct{ celtraits.Lister }

// Equal implements ref.Val.
func (s *unionSet) Equal(other ref.Val) ref.Val { return equalSets(s, other) }

// Add implements traits.Adder.
func (s *unionSet) Add(other ref.Val) ref.Val { return union(s, other) }

func equalSets(a celtraits.Lister, other ref.Val) ref.Val {
	b, ok := other.(celtraits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	if a.Size() != b.Size() {
		return types.False
	}
	set, err := setKeys(elements(a))
	if err != nil {
		return err
	}
	seen := map[any]bool{}
	for _, e := range elements(b) {
		key, err := setKey(e)
		if err != nil {
			return err
		}
		if !set[key] {
			return types.False
		}
		seen[key] = true
	}
	return types.Bool(len(seen) == len(set))
}

// union returns the items of a, followed by the items of other that are missing in a.
func union(a celtraits.Lister, other ref.Val) ref.Val {
	b, ok := other.(celtraits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	all := elements(a)
	set, err := setKeys(all)
	if err != nil {
		return err
	}
	for _, e := range elements(b) {
		key, err := setKey(e)
		if err != nil {
			return err
		}
		if !set[key] {
			set[key] = true
			all = append(all, e)
		}
	}
	return &unionSet{types.NewRefValList(types.DefaultTypeAdapter, all)}
}

// setKey returns a value that represents e as a map key.
func setKey(e ref.Val) (any, ref.Val) {
	switch e.(type) {
	case celtraits.Lister, celtraits.Mapper:
		return nil, types.NewErr("listSet operations are only supported on lists of scalar values")
	}
	return hashable(e.Value()), nil
}

func setKeys(elements []ref.Val) (map[any]bool, ref.Val) {
	keys := make(map[any]bool, len(elements))
	for _, e := range elements {
		key, err := setKey(e)
		if err != nil {
			return nil, err
		}
		keys[key] = true
	}
	return keys, nil
}

// hashable returns v if Go can compare it, or a representation of v.
func hashable(v any) any {
	if v != nil && !reflect.TypeOf(v).Comparable() {
		return fmt.Sprintf("%#v", v)
	}
	return v
}

// mapListView is a list with x-kubernetes-list-type=map. Comparisons ignore its order, and + merges the items by
// their keys.
type mapListView struct {
	listView
	keys []string // escaped
}

// escapedKeys returns the names that expressions use for the keys. A key without an escaped form is unchanged.
func escapedKeys(keys []string) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		if escaped, ok := apicel.Escape(k); ok {
			k = escaped
		}
		out[i] = k
	}
	return out
}

// Equal implements ref.Val. As upstream does, it looks up the keys in objects by their escaped names.
func (m *mapListView) Equal(other ref.Val) ref.Val {
	return equalMapLists(m, other, func(e ref.Val) any {
		t, ok := e.Value().(object.Tree)
		if !ok {
			return new(byte) // a new pointer equals nothing
		}
		return compose(m.keys, func(key string) any { return hashable(t[key]) })
	})
}

// Add implements traits.Adder.
func (m *mapListView) Add(other ref.Val) ref.Val { return merged(m, other, m.keys) }

// mergedList is the result of + on a list-type map.
type mergedList struct {
	celtraits.Lister
	keys []string
}

// Equal implements ref.Val.
func (m *mergedList) Equal(other ref.Val) ref.Val {
	return equalMapLists(m, other, func(e ref.Val) any { return entryKey(e, m.keys) })
}

// Add implements traits.Adder.
func (m *mergedList) Add(other ref.Val) ref.Val { return merged(m, other, m.keys) }

func equalMapLists(a celtraits.Lister, other ref.Val, keyOf func(ref.Val) any) ref.Val {
	b, ok := other.(celtraits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	if a.Size() != b.Size() {
		return types.False
	}
	entries, seen := map[any]ref.Val{}, map[any]bool{}
	for _, e := range elements(a) {
		entries[keyOf(e)] = e
	}
	for _, e := range elements(b) {
		key := keyOf(e)
		entry, ok := entries[key]
		if !ok {
			return types.False
		}
		if equal := entry.Equal(e); equal != types.True {
			return equal
		}
		seen[key] = true
	}
	return types.Bool(len(seen) == len(entries))
}

// merged returns the entries of a and other. An entry of other replaces an entry of a with the same keys. All other
// entries of other are appended.
func merged(a celtraits.Lister, other ref.Val, keys []string) ref.Val {
	b, ok := other.(celtraits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	all, index := elements(a), map[any]int{}
	for i, e := range all {
		index[entryKey(e, keys)] = i
	}
	for _, e := range elements(b) {
		if i, ok := index[entryKey(e, keys)]; ok {
			all[i] = e
		} else {
			all = append(all, e)
		}
	}
	return &mergedList{types.NewRefValList(types.DefaultTypeAdapter, all), keys}
}

// entryKey returns a value that represents the keys of an entry as a map key.
func entryKey(e ref.Val, keys []string) any {
	return compose(keys, func(key string) any {
		var v ref.Val
		ok := false
		if m, isMap := e.(celtraits.Mapper); isMap {
			v, ok = m.Find(types.String(key))
		}
		if !ok || v == nil || types.IsUnknownOrError(v) {
			return nil
		}
		return hashable(v.Value())
	})
}

// compose combines several key values into one comparable value.
func compose(keys []string, of func(string) any) any {
	switch len(keys) {
	case 1:
		return of(keys[0])
	case 2:
		return [2]any{of(keys[0]), of(keys[1])}
	case 3:
		return [3]any{of(keys[0]), of(keys[1]), of(keys[2])}
	}
	all := make([]any, len(keys))
	for i, key := range keys {
		all[i] = of(key)
	}
	return fmt.Sprintf("%#v", all)
}
