package cel

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

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// scalarTypes maps the scalar types of CEL to JSON types.
var scalarTypes = map[types.Kind]schema.TypeSet{
	types.StringKind:    schema.String,
	types.BytesKind:     schema.String,
	types.TimestampKind: schema.String,
	types.DurationKind:  schema.String,
	types.IntKind:       schema.Integer | schema.Number,
	types.UintKind:      schema.Integer | schema.Number,
	types.DoubleKind:    schema.Number,
	types.BoolKind:      schema.Boolean,
}

// checkAssignable returns an error if values of the CEL type t cannot be values of n. It accepts dyn for any type and
// maps for objects, because validateTypes checks such values at run time.
func (s *scope) checkAssignable(t *types.Type, n *schema.Node) error {
	if t.TypeName() == "optional_type" {
		t = t.Parameters()[0]
	}
	wrong := fmt.Errorf("the expression is of type %s, but the field is of type %s", t, schema.TypeText(n))
	switch kind := t.Kind(); {
	case kind == types.DynKind, n.Types == 0:
		return nil
	case kind == types.ListKind && n.Types == schema.Array && n.Items != nil:
		return s.checkAssignable(t.Parameters()[0], n.Items)
	case kind == types.MapKind && isMap(n):
		return s.checkAssignable(t.Parameters()[1], n.Additional.Schema)
	case (kind == types.MapKind || kind == types.StructKind) && n.Types == schema.Object:
		return nil
	case kind == types.NullTypeKind && n.Nullable, scalarTypes[kind]&n.Types != 0:
		return nil
	}
	return wrong
}

// fromCEL converts a CEL value to a JSON value for the schema n.
func fromCEL(n *schema.Node, v ref.Val) (any, error) {
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
		if n != nil && n.Format == "date" {
			return v.Format(strfmt.RFC3339FullDate), nil
		}
		return v.Format(time.RFC3339Nano), nil
	case celtraits.Lister:
		return fromCELList(n, v)
	case celtraits.Mapper:
		return fromCELMap(n, v)
	}
	return nil, fmt.Errorf("the result %v cannot be represented in JSON", v)
}

func fromCELList(n *schema.Node, l celtraits.Lister) (any, error) {
	var items *schema.Node
	if n != nil {
		items = n.Items
	}
	list := []any{}
	for it := l.Iterator(); it.HasNext() == types.True; {
		v, err := fromCEL(items, it.Next())
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func fromCELMap(n *schema.Node, m celtraits.Mapper) (any, error) {
	tree := object.Tree{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, fmt.Errorf("the map key %v in the result is not a string", key)
		}
		v, err := fromCEL(n.Child(string(name)), m.Get(key))
		if err != nil {
			return nil, err
		}
		tree[string(name)] = v
	}
	return tree, nil
}

// validateTypes returns an error if v or a value in it has a type that n does not allow. Unknown fields and nulls
// are accepted, because normalization removes them.
func validateTypes(n *schema.Node, v any) error {
	if n == nil || v == nil {
		return nil
	}
	if n.Types != 0 && schema.TypeOf(v)&n.Types == 0 && !schema.NumberFits(v, n.Types) {
		return fmt.Errorf("the result contains a value of type %s, but the schema requires the type %s",
			schema.TypeOf(v), schema.TypeText(n))
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if err := validateTypes(n.Items, item); err != nil {
				return err
			}
		}
	case object.Tree:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := validateTypes(n.Child(name), v[name]); err != nil {
				return err
			}
		}
	}
	return nil
}
