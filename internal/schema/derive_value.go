package schema

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	celtraits "github.com/google/cel-go/common/types/traits"
	"k8s.io/kube-openapi/pkg/validation/strfmt"

	"github.com/trellis-k8s/trellis/internal/object"
)

// scalarTypes maps the scalar types of CEL to JSON types.
var scalarTypes = map[types.Kind]typeSet{
	types.StringKind: isString, types.BytesKind: isString, types.TimestampKind: isString, types.DurationKind: isString,
	types.IntKind: isInteger | isNumber, types.UintKind: isInteger | isNumber, types.DoubleKind: isNumber,
	types.BoolKind: isBoolean,
}

// checkAssignable returns an error if values of the CEL type t cannot be values of n. It accepts dyn for any type and
// maps for objects, because validateTypes checks such values at run time.
func (s *scope) checkAssignable(t *types.Type, n *node) error {
	if t.TypeName() == "optional_type" {
		t = t.Parameters()[0]
	}
	wrong := fmt.Errorf("the expression is of type %s, but the field is of type %s", t, typeText(n))
	switch kind := t.Kind(); {
	case kind == types.DynKind, n.types == 0:
		return nil
	case kind == types.ListKind && n.types == isArray && n.items != nil:
		return s.checkAssignable(t.Parameters()[0], n.items)
	case kind == types.MapKind && n.isMap():
		return s.checkAssignable(t.Parameters()[1], n.additional.schema)
	case (kind == types.MapKind || kind == types.StructKind) && n.types == isObject:
		return nil
	case kind == types.NullTypeKind && n.nullable, scalarTypes[kind]&n.types != 0:
		return nil
	}
	return wrong
}

// fromCEL converts a CEL value to a JSON value for the schema n.
func (n *node) fromCEL(v ref.Val) (any, error) {
	switch v := v.(type) {
	case *objectView:
		return object.CopyValue(v.tree), nil
	case types.Null:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.String:
		return string(v), nil
	case types.Int:
		return int64(v), nil
	case types.Uint:
		if v <= math.MaxInt64 {
			return int64(v), nil
		}
	case types.Double:
		if f := float64(v); !math.IsInf(f, 0) && !math.IsNaN(f) {
			return object.Number(f), nil
		}
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(v), nil
	case types.Duration:
		return v.Duration.String(), nil
	case types.Timestamp:
		if n != nil && n.format == "date" {
			return v.Format(strfmt.RFC3339FullDate), nil
		}
		return v.Format(time.RFC3339Nano), nil
	case celtraits.Lister:
		return n.fromCELList(v)
	case celtraits.Mapper:
		return n.fromCELMap(v)
	}
	return nil, fmt.Errorf("the result %v cannot be represented in JSON", v)
}

func (n *node) fromCELList(l celtraits.Lister) (any, error) {
	var items *node
	if n != nil {
		items = n.items
	}
	list := []any{}
	for it := l.Iterator(); it.HasNext() == types.True; {
		v, err := items.fromCEL(it.Next())
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func (n *node) fromCELMap(m celtraits.Mapper) (any, error) {
	tree := object.Tree{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, fmt.Errorf("the map key %v in the result is not a string", key)
		}
		v, err := n.child(string(name)).fromCEL(m.Get(key))
		if err != nil {
			return nil, err
		}
		tree[string(name)] = v
	}
	return tree, nil
}

// validateTypes returns an error if v or a value in it has a type that n does not allow. Unknown fields and nulls
// are accepted, because normalization removes them.
func (n *node) validateTypes(v any) error {
	if n == nil || v == nil {
		return nil
	}
	if n.types != 0 && typeOf(v)&n.types == 0 && !numberFits(v, n.types) {
		return fmt.Errorf("the result contains a value of type %s, but the schema requires the type %s", typeOf(v),
			typeText(n))
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if err := n.items.validateTypes(item); err != nil {
				return err
			}
		}
	case object.Tree:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := n.child(name).validateTypes(v[name]); err != nil {
				return err
			}
		}
	}
	return nil
}
