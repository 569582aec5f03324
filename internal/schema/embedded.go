package schema

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// CoerceEmbedded gives apiVersion, kind and metadata of every embedded resource in t
// (x-kubernetes-embedded-resource) the types they have on any object. It drops the fields of metadata
// that nobody knows and returns their paths, sorted. The first value of a wrong type is the
// error. Those of t itself are not looked at. It costs nothing where the schema embeds none.
func (s *Schema) CoerceEmbedded(t object.Tree) (unknown []string, err *field.Error) {
	if !s.embeds || s.root == nil {
		return nil, nil
	}
	c := coercer{}
	err = c.children(t, s.root, nil)
	slices.Sort(c.unknown)
	return c.unknown, err
}

type coercer struct{ unknown []string }

func (c *coercer) value(v any, n *node, path *field.Path) *field.Error {
	if n == nil {
		return nil
	}
	switch v := v.(type) {
	case object.Tree:
		if n.embedded {
			if err := c.embedded(v, path); err != nil {
				return err
			}
		}
		return c.children(v, n, path)
	case []any:
		for i := range v {
			if err := c.value(v[i], n.items, path.Index(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *coercer) children(t object.Tree, n *node, path *field.Path) *field.Error {
	for _, k := range slices.Sorted(maps.Keys(t)) {
		var err *field.Error
		if child, ok := n.properties[k]; ok {
			err = c.value(t[k], child, path.Child(k))
		} else if n.additional != nil {
			err = c.value(t[k], n.additional.schema, path.Key(k))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// embedded coerces one resource.
func (c *coercer) embedded(t object.Tree, path *field.Path) *field.Error {
	for _, k := range []string{"apiVersion", "kind"} {
		if v, ok := t[k]; ok {
			if _, ok := v.(string); !ok {
				return field.Invalid(path.Child(k), v, "must be a string")
			}
		}
	}
	v, ok := t["metadata"]
	if !ok {
		return nil
	}
	at := path.Child("metadata")
	md, unknown, err := objectMetaOf(v)
	if err != nil {
		return field.Invalid(at, v, err.Error())
	}
	for _, name := range unknown {
		c.unknown = append(c.unknown, at.String()+"."+name)
	}
	t["metadata"] = md
	return nil
}

// objectMetaOf takes v through the Go type of metadata.
func objectMetaOf(v any) (out object.Tree, unknown []string, err error) {
	var md metav1.ObjectMeta
	strict, err := kjson.UnmarshalStrict(object.AppendJSON(nil, v), &md)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range strict {
		if f, ok := e.(kjson.FieldError); ok {
			unknown = append(unknown, f.FieldPath())
		}
	}
	if out, err = runtime.DefaultUnstructuredConverter.ToUnstructured(&md); err != nil {
		return nil, nil, fmt.Errorf("schema: tree of metadata: %w", err)
	}
	if md.CreationTimestamp.IsZero() {
		delete(out, "creationTimestamp")
	}
	return out, unknown, nil
}

// embeds reports whether any value below n is an embedded resource.
func (n *node) embeds() bool {
	if n == nil {
		return false
	}
	below := func(child *node) bool { return child != nil && (child.embedded || child.embeds()) }
	for _, child := range n.properties {
		if below(child) {
			return true
		}
	}
	return below(n.items) || n.additional != nil && below(n.additional.schema)
}
