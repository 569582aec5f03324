package crdvalidation

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// schemaField is the field of a CRD that holds a schema.
type schemaField = apiextensions.CustomResourceValidation

// CRD is a CustomResourceDefinition in upstream's internal form. Its schemas are compiled, and the fields
// OpenAPIV3Schema of the internal form are nil.
type CRD struct {
	*apiextensions.CustomResourceDefinition
	schemas map[*schemaField]*crd.Compiled
	legacy  bool // the source is of apiextensions.k8s.io/v1beta1
}

// Read decodes the JSON of a CRD of apiextensions.k8s.io/v1.
func Read(js []byte) (CRD, error) {
	t, _, err := Decode(js, func(js []byte) (object.Tree, []string, error) {
		var v1 apiextensionsv1.CustomResourceDefinition
		if err := kjson.UnmarshalCaseSensitivePreserveInts(js, &v1); err != nil {
			return nil, nil, fmt.Errorf("decode a CustomResourceDefinition: %w", err)
		}
		out, err := json.Marshal(v1)
		if err != nil {
			return nil, nil, fmt.Errorf("decode a CustomResourceDefinition: %w", err)
		}
		return object.DecodeJSON(out)
	})
	if err != nil {
		return CRD{}, err
	}
	return FromTree(t)
}

// FromTree converts a CRD of apiextensions.k8s.io/v1 that Decode has decoded.
func FromTree(t object.Tree) (CRD, error) {
	shell, versions := withoutSchemas(withoutManagedFields(t))
	internal, err := decodeInternal(object.AppendJSON(nil, shell))
	if err != nil {
		return CRD{}, err
	}
	c := CRD{CustomResourceDefinition: internal, schemas: map[*schemaField]*crd.Compiled{}}
	for i, v := range versions {
		field, _ := v["schema"].(object.Tree)
		if field == nil {
			continue
		}
		at := &schemaField{}
		c.Spec.Versions[i].Schema = at
		if from, _ := field["openAPIV3Schema"].(object.Tree); from != nil {
			if c.schemas[at], err = crd.Compile(object.AppendJSON(nil, from), false); err != nil {
				return CRD{}, fmt.Errorf("decode a CustomResourceDefinition: %w", err)
			}
		}
	}
	c.shareSchema()
	return c, nil
}

// shareSchema moves a schema that all versions have to the top of spec, where the internal form has it.
func (c CRD) shareSchema() {
	versions := c.Spec.Versions
	if len(versions) == 0 {
		return
	}
	first := versions[0].Schema
	for _, v := range versions[1:] {
		if !c.isSame(v.Schema, first) {
			return
		}
	}
	c.Spec.Validation = first
	for i := range versions {
		versions[i].Schema = nil
	}
}

// isSame reports whether two schemas are equal. An empty list equals a missing list.
func (c CRD) isSame(a, b *schemaField) bool {
	return (a == nil) == (b == nil) && (a == b || schema.EqualJSON(c.Root(a), c.Root(b)))
}

// Root returns the schema in a field of the CRD, or nil.
func (c CRD) Root(at *schemaField) *schema.Node {
	if s := c.schemas[at]; s != nil {
		return s.Schema.Root
	}
	return nil
}

// compiled returns all schemas of the CRD.
func (c CRD) compiled() (all []*crd.Compiled) {
	add := func(at *schemaField) {
		if s := c.schemas[at]; s != nil {
			all = append(all, s)
		}
	}
	add(c.Spec.Validation)
	for i := range c.Spec.Versions {
		add(c.Spec.Versions[i].Schema)
	}
	return all
}

// any reports whether f returns true for a schema of the CRD, or for a schema below it.
func (c CRD) any(f func(*schema.Node) bool) bool {
	return slices.ContainsFunc(c.compiled(), func(s *crd.Compiled) bool { return s.Schema.Root.Any(f) })
}

// Upstream returns the CRD with its schemas in upstream's form.
func (c CRD) Upstream() *apiextensions.CustomResourceDefinition {
	out := *c.CustomResourceDefinition
	full := func(at *schemaField) *schemaField {
		root := c.Root(at)
		if root == nil {
			return at
		}
		props, _ := root.Upstream() // an error means that the schema has unusual values, which errors omit
		return &schemaField{OpenAPIV3Schema: props}
	}
	out.Spec.Validation, out.Spec.Versions = full(out.Spec.Validation), slices.Clone(out.Spec.Versions)
	for i := range out.Spec.Versions {
		v := &out.Spec.Versions[i]
		v.Schema = full(v.Schema)
	}
	return &out
}

// decodeInternal decodes the JSON of a CRD of apiextensions.k8s.io/v1 to the internal form.
func decodeInternal(js []byte) (*apiextensions.CustomResourceDefinition, error) {
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := kjson.UnmarshalCaseSensitivePreserveInts(js, &v1); err != nil {
		return nil, fmt.Errorf("decode a CustomResourceDefinition: %w", err)
	}
	out := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, out,
		nil); err != nil {
		return nil, fmt.Errorf("decode a CustomResourceDefinition: %w", err)
	}
	return out, nil
}

func withoutManagedFields(t object.Tree) object.Tree {
	metadata, _ := t["metadata"].(object.Tree)
	if metadata["managedFields"] == nil {
		return t
	}
	t, metadata = maps.Clone(t), maps.Clone(metadata)
	delete(metadata, "managedFields")
	t["metadata"] = metadata
	return t
}

// withoutSchemas returns a copy of t without the schemas of its versions, and the versions with their schemas.
func withoutSchemas(t object.Tree) (shell object.Tree, versions []object.Tree) {
	versions = versionsOf(t)
	if len(versions) == 0 {
		return t, nil
	}
	spec, _ := t["spec"].(object.Tree)
	list, _ := spec["versions"].([]any)
	shell, spec, list = maps.Clone(t), maps.Clone(spec), slices.Clone(list)
	for i, v := range versions {
		if v["schema"] != nil {
			v = maps.Clone(v)
			delete(v, "schema")
			list[i] = v
		}
	}
	spec["versions"], shell["spec"] = list, spec
	return shell, versions
}

// versionsOf returns the versions of a CRD. A version that is not an object is nil.
func versionsOf(crd object.Tree) []object.Tree {
	spec, _ := crd["spec"].(object.Tree)
	list, _ := spec["versions"].([]any)
	all := make([]object.Tree, len(list))
	for i := range list {
		all[i], _ = list[i].(object.Tree)
	}
	return all
}
