package cel

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	celtraits "github.com/google/cel-go/common/types/traits"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apicel "k8s.io/apiserver/pkg/cel"
	"k8s.io/kube-openapi/pkg/validation/strfmt"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Rules access an object through views of its tree, which are created on access. Views behave like the values in
// k8s.io/apiserver/pkg/cel/common. If a value does not match the schema, access to it returns the same error as
// upstream.

// viewOf returns the CEL value for v. n is the schema of v.
func viewOf(n *schema.Node, v any) ref.Val {
	if v == nil {
		if n.Nullable {
			return types.NullValue
		}
		return types.NewErr("invalid data, got null for schema with nullable=false")
	}
	if n.IntOrString {
		switch v := v.(type) {
		case string:
			return types.String(v)
		case int64:
			return types.Int(v)
		}
		return types.NewErr("invalid data, expected XIntOrString value to be either a string or integer")
	}
	switch n.Type {
	case "object":
		if t, ok := v.(object.Tree); ok {
			return &objectView{asCELNode(n), t}
		}
		return types.NewErr("invalid data, expected a map for the provided schema with type=object")
	case "array":
		return viewList(n, v)
	case "string":
		if s, ok := v.(string); ok {
			return viewText(n, s)
		}
		return types.NewErr("invalid data, expected string, got %T", v)
	}
	return viewScalar(n, v)
}

func viewScalar(n *schema.Node, v any) ref.Val {
	switch n.Type {
	case "number":
		switch v := v.(type) {
		case int64:
			return types.Double(v)
		case float64:
			return types.Double(v)
		}
		return types.NewErr("invalid data, expected float, got %T", v)
	case "integer":
		if i, ok := v.(int64); ok {
			return types.Int(i)
		}
		return types.NewErr("invalid data, expected int, got %T", v)
	case "boolean":
		if b, ok := v.(bool); ok {
			return types.Bool(b)
		}
		return types.NewErr("invalid data, expected bool, got %T", v)
	}
	if n.Preserve {
		return &unknownView{v}
	}
	return types.NewErr("invalid type, expected object, array, number, integer, boolean or string, or no type with "+
		"x-kubernetes-int-or-string or x-kubernetes-preserve-unknown-fields is true, got %s", n.Type)
}

func viewText(n *schema.Node, s string) ref.Val {
	switch n.Format {
	case "duration":
		d, err := strfmt.ParseDuration(s)
		if err != nil {
			return types.NewErr("Invalid duration %s: %v", s, err)
		}
		return types.Duration{Duration: d}
	case "date":
		d, err := time.Parse(strfmt.RFC3339FullDate, s)
		if err != nil {
			return types.NewErr("Invalid date formatted string %s: %v", s, err)
		}
		return types.Timestamp{Time: d}
	case "date-time":
		d, err := strfmt.ParseDateTime(s)
		if err != nil {
			return types.NewErr("Invalid date-time formatted string %s: %v", s, err)
		}
		return types.Timestamp{Time: time.Time(d)}
	case "byte":
		b := strfmt.Base64{}
		if err := b.UnmarshalText([]byte(s)); err != nil {
			return types.NewErr("Invalid byte formatted string %s: %v", s, err)
		}
		return types.Bytes(b)
	}
	return types.String(s)
}

func viewList(n *schema.Node, v any) ref.Val {
	items, ok := v.([]any)
	switch {
	case !ok:
		return types.NewErr("invalid data, expected an array for the provided schema with type=array")
	case n.Items == nil:
		return types.NewErr("invalid array type, expected Items with a non-empty Schema")
	}
	list := listView{n.Items, items}
	switch n.ListType {
	case "", "atomic":
		return &list
	case "set":
		return &setView{list}
	case "map":
		return &mapListView{list, escapedKeys(n.ListMapKeys)}
	}
	return types.NewErr("invalid x-kubernetes-list-type, expected 'map', 'set' or 'atomic' but got %s", n.ListType)
}

// unknownView is a value that expressions can compare but not access.
type unknownView struct{ v any }

func (u *unknownView) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("type conversion to '%s' not supported for values preserved by "+
		"x-kubernetes-preserve-unknown-fields", t)
}

func (u *unknownView) ConvertToType(t ref.Type) ref.Val {
	return types.NewErr("type conversion to '%s' not supported for values preserved by "+
		"x-kubernetes-preserve-unknown-fields", t.TypeName())
}

func (u *unknownView) Equal(other ref.Val) ref.Val {
	return types.Bool(apiequality.Semantic.DeepEqual(u.v, other.Value()))
}

func (u *unknownView) Type() ref.Type { return types.UnknownType }

func (u *unknownView) Value() any { return u.v }

// objectView is the CEL value of an object or a map.
type objectView struct {
	n    *schema.Node
	tree object.Tree
}

// named reports whether the fields are properties. If they are not, they are keys of a map.
func (o *objectView) named() bool { return len(o.n.Properties) > 0 }

// child returns the schema of a field, or nil.
func (o *objectView) child(key string) *schema.Node {
	switch {
	case o.named():
		return o.n.Properties[key]
	case o.n.Additional != nil:
		return o.n.Additional.Schema
	}
	return nil
}

// Find implements traits.Mapper. A null field counts as missing.
func (o *objectView) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), true
	}
	k, named := string(name), o.named()
	if named && strings.Contains(k, "__") {
		if k, ok = apicel.Unescape(k); !ok {
			return nil, false
		}
	}
	v, ok := o.tree[k]
	if !ok || named && v == nil {
		return nil, false
	}
	if child := o.child(k); child != nil {
		return viewOf(child, v), true
	}
	return nil, false
}

// Get implements traits.Indexer.
func (o *objectView) Get(key ref.Val) ref.Val {
	if v, ok := o.Find(key); ok {
		return v
	}
	return types.ValOrErr(key, "no such key: %v", key)
}

// Contains implements traits.Container.
func (o *objectView) Contains(key ref.Val) ref.Val {
	v, ok := o.Find(key)
	if v != nil && types.IsUnknownOrError(v) {
		return v
	}
	return types.Bool(ok)
}

// Size implements traits.Sizer.
func (o *objectView) Size() ref.Val { return types.Int(len(o.tree)) }

// Iterator implements traits.Iterable. It iterates over the keys in sorted order, so that rules are deterministic.
func (o *objectView) Iterator() celtraits.Iterator {
	keys := make([]string, 0, len(o.tree))
	named := o.named()
	for k := range o.tree {
		if o.child(k) == nil {
			continue
		}
		if escaped, ok := apicel.Escape(k); ok && named {
			k = escaped
		}
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return &iterator{size: len(keys), at: func(i int) ref.Val { return types.String(keys[i]) }}
}

// Equal implements ref.Val. Unknown fields are compared without a schema.
func (o *objectView) Equal(other ref.Val) ref.Val {
	m, ok := other.(celtraits.Mapper)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	if o.Size() != m.Size() {
		return types.False
	}
	for _, key := range slices.Sorted(maps.Keys(o.tree)) {
		var equal ref.Val
		if o.child(key) != nil {
			equal = o.equalField(m, types.String(key))
		} else {
			equal = o.equalUnknown(other, key)
		}
		if equal != types.True {
			return equal
		}
	}
	return types.True
}

func (o *objectView) equalField(m celtraits.Mapper, key ref.Val) ref.Val {
	v, ok := o.Find(key)
	w, has := m.Find(key)
	switch {
	case ok != has:
		return types.False
	case !ok:
		return types.True
	}
	return v.Equal(w)
}

func (o *objectView) equalUnknown(other ref.Val, key string) ref.Val {
	view, ok := other.(*objectView)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	w, ok := view.tree[key]
	return types.Bool(!ok || apiequality.Semantic.DeepEqual(o.tree[key], w))
}

// ConvertToNative implements ref.Val.
func (o *objectView) ConvertToNative(t reflect.Type) (any, error) {
	if t.Kind() == reflect.Map {
		return o.tree, nil
	}
	return nil, fmt.Errorf("type conversion error from '%s' to '%s'", o.Type(), t)
}

// ConvertToType implements ref.Val.
func (o *objectView) ConvertToType(t ref.Type) ref.Val {
	switch t {
	case types.MapType:
		return o
	case types.TypeType:
		return types.MapType
	}
	return types.NewErr("type conversion error from '%s' to '%s'", o.Type(), t.TypeName())
}

// Type implements ref.Val.
func (o *objectView) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (o *objectView) Value() any { return o.tree }

// iterator iterates over the values that the function at returns.
type iterator struct {
	ref.Val // CEL never uses an iterator as a value
	at      func(int) ref.Val
	i, size int
}

// HasNext implements traits.Iterator.
func (it *iterator) HasNext() ref.Val { return types.Bool(it.i < it.size) }

// Next implements traits.Iterator.
func (it *iterator) Next() ref.Val {
	it.i++
	return it.at(it.i - 1)
}
