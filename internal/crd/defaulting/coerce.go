package defaulting

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// CoerceEmbedded converts apiVersion, kind and metadata of every embedded resource in t
// (x-kubernetes-embedded-resource) to their types. It drops unknown fields of metadata and returns the sorted paths
// of these fields. It returns an error for the first value of a wrong type. The metadata of t itself is not checked.
// If the schema has no embedded resources, CoerceEmbedded returns immediately.
func (z *Normalizer) CoerceEmbedded(t object.Tree) (unknown []string, err *field.Error) {
	root := z.root()
	if !root.Has(schema.EmbeddedResources) {
		return nil, nil
	}
	c := coercer{}
	err = c.children(t, root, nil)
	slices.Sort(c.unknown.all)
	return c.unknown.all, err
}

// Coerce does the same as CoerceEmbedded for a value with the schema n. path is the path of v in the error.
func Coerce(v any, n *schema.Node, path *field.Path) *field.Error {
	return (&coercer{}).value(v, n, path)
}

// coercer converts apiVersion, kind and metadata of embedded resources.
type coercer struct {
	unknown paths
	drop    bool // drop values that cannot be coerced instead of returning an error
}

func (c *coercer) value(v any, n *schema.Node, path *field.Path) *field.Error {
	if !n.Has(schema.EmbeddedResources) {
		return nil
	}
	switch v := v.(type) {
	case object.Tree:
		if n.Embedded {
			if err := c.embedded(v, path); err != nil {
				return err
			}
		}
		return c.children(v, n, path)
	case []any:
		for i := range v {
			if err := c.value(v[i], n.Items, path.Index(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *coercer) children(t object.Tree, n *schema.Node, path *field.Path) *field.Error {
	for _, k := range slices.Sorted(maps.Keys(t)) {
		var err *field.Error
		if child, ok := n.Properties[k]; ok {
			err = c.value(t[k], child, path.Child(k))
		} else if n.Additional != nil {
			err = c.value(t[k], n.Additional.Schema, path.Key(k))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// embedded coerces one embedded resource.
func (c *coercer) embedded(t object.Tree, path *field.Path) *field.Error {
	for _, k := range []string{"apiVersion", "kind"} {
		if v, ok := t[k]; ok {
			if _, ok := v.(string); !ok && c.drop {
				delete(t, k)
			} else if !ok {
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
	if err != nil && c.drop {
		if v, ok := v.(object.Tree); ok {
			t["metadata"] = wellFormed(v)
		}
		return nil
	}
	if err != nil {
		return field.Invalid(at, v, err.Error())
	}
	for _, name := range unknown {
		if c.unknown.full() {
			break
		}
		c.unknown.add(at.String() + "." + name)
	}
	t["metadata"] = md
	return nil
}

// wellFormed returns the fields of invalid metadata that are valid when each field is decoded separately.
func wellFormed(v object.Tree) object.Tree {
	kept := object.Tree{}
	for k, w := range v {
		if _, _, err := objectMetaOf(object.Tree{k: w}); err == nil {
			kept[k] = w
		}
	}
	md, _, err := objectMetaOf(kept)
	if err != nil {
		return object.Tree{}
	}
	return md
}

// objectMetaOf decodes v into metav1.ObjectMeta and converts the result back to a tree.
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
		return nil, nil, fmt.Errorf("schema: convert metadata to a tree: %w", err)
	}
	if md.CreationTimestamp.IsZero() {
		delete(out, "creationTimestamp")
	}
	return out, unknown, nil
}
