package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// CoerceEmbedded converts apiVersion, kind and metadata of every embedded resource in t
// (x-kubernetes-embedded-resource) to their types. It drops unknown fields of metadata and returns the sorted paths
// of these fields. It returns an error for the first value of a wrong type. The metadata of t itself is not checked.
// If the schema has no embedded resources, CoerceEmbedded returns immediately.
func (s *Schema) CoerceEmbedded(t object.Tree) (unknown []string, err *field.Error) {
	root := s.structuralRoot()
	if !root.has(embedded) {
		return nil, nil
	}
	c := coercer{}
	err = c.children(t, root, nil)
	slices.Sort(c.unknown.all)
	return c.unknown.all, err
}

type coercer struct {
	unknown paths
	drop    bool // drop values that cannot be coerced instead of returning an error
}

func (c *coercer) value(v any, n *node, path *field.Path) *field.Error {
	if !n.has(embedded) {
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
	for _, k := range sortedKeys(t) {
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

// validateEmbedded checks apiVersion, kind and metadata of every embedded resource in t.
func (s *Schema) validateEmbedded(ctx context.Context, t object.Tree) field.ErrorList {
	root := s.structuralRoot()
	if !root.has(embedded) {
		return nil
	}
	e := embeddedChecker{ctx: ctx}
	e.value(t, root, nil)
	return e.errs
}

type embeddedChecker struct {
	ctx  context.Context
	errs field.ErrorList
}

func (e *embeddedChecker) value(v any, n *node, at *position) {
	if !n.has(embedded) {
		return
	}
	switch v := v.(type) {
	case object.Tree:
		if n.embedded {
			e.resource(v, at.path())
		}
		for _, k := range sortedKeys(v) {
			if child, ok := n.properties[k]; ok {
				e.value(v[k], child, &position{parent: at, key: k})
			} else if n.additional != nil {
				e.value(v[k], n.additional.schema, &position{parent: at, key: k, kind: atKey})
			}
		}
	case []any:
		for i := range v {
			e.value(v[i], n.items, &position{parent: at, index: i, kind: atIndex})
		}
	}
}

// resource checks one embedded resource. Its metadata and the name in the metadata are optional.
func (e *embeddedChecker) resource(t object.Tree, path *field.Path) {
	e.text(t, "apiVersion", path, func(v string) string {
		if _, err := schema.ParseGroupVersion(v); err != nil {
			return err.Error()
		}
		return ""
	})
	e.text(t, "kind", path, func(v string) string {
		if problems := validation.IsDNS1035Label(strings.ToLower(v)); len(problems) > 0 {
			return "may have mixed case, but should otherwise match: " + strings.Join(problems, ",")
		}
		return ""
	})
	v, ok := t["metadata"]
	if !ok {
		return
	}
	path = path.Child("metadata")
	var md metav1.ObjectMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(object.AppendJSON(nil, v), &md); err != nil {
		e.errs = append(e.errs, field.Invalid(path, v, err.Error()))
		return
	}
	if md.Name == "" {
		md.Name = "fakename"
	}
	e.errs = append(e.errs, apivalidation.ValidateObjectMetaDeclaratively(e.ctx, operation.Create, &md, nil,
		md.Namespace != "", pathSegment, path, true)...)
}

// text checks a required string.
func (e *embeddedChecker) text(t object.Tree, key string, path *field.Path, problem func(string) string) {
	v, ok := t[key]
	if !ok {
		e.errs = append(e.errs, field.Required(path.Child(key), ""))
		return
	}
	text, ok := v.(string)
	wrong := "must be a string"
	switch {
	case ok && text == "":
		wrong = "must not be empty"
	case ok:
		wrong = problem(text)
	}
	if wrong != "" {
		e.errs = append(e.errs, field.Invalid(path.Child(key), v, wrong))
	}
}

// pathSegment checks the minimum requirements that every object name must meet.
func pathSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}
