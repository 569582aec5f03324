package extension

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	machinery "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// addSchemas sets the missing schemas of the versions of crd. It uses the OpenAPI definitions of their Go types.
func (k *Kind) addSchemas(crd *apiextensionsv1.CustomResourceDefinition) error {
	var all definitions
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Schema != nil {
			continue
		}
		if k.OpenAPI == nil {
			return fmt.Errorf("version %s has no schema, and OpenAPI is not set", v.Name)
		}
		if all.byName == nil {
			all.read(machinery.GetOpenAPIDefinitions) // types of apimachinery; k.OpenAPI may not contain them
			all.read(k.OpenAPI)
		}
		obj, err := k.Scheme.New(schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name,
			Kind: crd.Spec.Names.Kind})
		if err != nil {
			return err
		}
		s, err := all.structural(modelName(util.GetCanonicalTypeName(obj)), nil)
		if err != nil {
			return fmt.Errorf("schema of version %s: %w", v.Name, err)
		}
		s.Properties["metadata"] = apiextensionsv1.JSONSchemaProps{Type: "object"}
		v.Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: s}
	}
	return nil
}

// definitions holds generated schemas by their OpenAPI names, and converts them to structural schemas without
// references.
type definitions struct {
	byName map[string]common.OpenAPIDefinition
	stack  []string // names of the schemas that are being expanded
}

func (d *definitions) read(generated common.GetOpenAPIDefinitions) {
	if d.byName == nil {
		d.byName = map[string]common.OpenAPIDefinition{}
	}
	for name, definition := range generated(func(name string) spec.Ref { return spec.MustCreateRef(modelName(name)) }) {
		d.byName[modelName(name)] = definition
	}
}

// modelName returns the OpenAPI name of a type. The parameter is this name, or the package path and name of the type.
func modelName(name string) string {
	if strings.Contains(name, "/") {
		return util.ToRESTFriendlyName(name)
	}
	return name
}

// structural returns the structural schema of a definition. If the definition is that of a list item, keys holds the
// map keys of the list.
func (d *definitions) structural(name string, keys []string) (*apiextensionsv1.JSONSchemaProps, error) {
	definition, ok := d.byName[name]
	if !ok {
		return nil, fmt.Errorf("OpenAPI does not define %s", name)
	}
	text, err := json.Marshal(definition.Schema)
	if err != nil {
		return nil, err
	}
	s := &apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal(text, s); err != nil { // drops extensions that JSONSchemaProps does not have
		return nil, err
	}
	d.stack = append(d.stack, name)
	defer func() { d.stack = d.stack[:len(d.stack)-1] }()
	return s, d.complete(s, keys)
}

// complete makes the schema s structural. It drops constraints that a structural schema cannot express. The server
// still checks these values when it decodes the object into its Go type.
func (d *definitions) complete(s *apiextensionsv1.JSONSchemaProps, keys []string) error {
	if s.Ref != nil {
		return d.resolve(s, keys)
	}
	switch {
	case len(s.OneOf) > 0: // the type is either a number or a string
		s.OneOf, s.Type, s.Format, s.XIntOrString = nil, "", "", true
	case s.Type == "object" && len(s.Properties) == 0 && s.AdditionalProperties == nil, s.Type == "":
		s.XPreserveUnknownFields = new(true)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		if err := d.complete(&p, nil); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if slices.Contains(s.Required, name) || !slices.Contains(keys, name) {
			dropZero(&p)
		}
		if slices.Contains(s.Required, name) && (p.Type == "array" || p.Type == "object" || p.Format == "date-time") {
			p.Nullable = true // Go encodes an unset field as null
		}
		s.Properties[name] = p
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		dropZero(s.AdditionalProperties.Schema)
		return d.complete(s.AdditionalProperties.Schema, nil)
	}
	if s.Items == nil || s.Items.Schema == nil {
		s.XListType = nil // valid only for lists, but some other types have the marker
		return nil
	}
	item := s.Items.Schema
	dropZero(item)
	err := d.complete(item, s.XListMapKeys)
	for _, key := range s.XListMapKeys {
		if p, ok := item.Properties[key]; !ok || p.Default == nil && !slices.Contains(item.Required, key) {
			s.XListType, s.XListMapKeys = new("atomic"), nil // the key is not required in items
			break
		}
	}
	return err
}

// resolve replaces s with the schema that it refers to.
func (d *definitions) resolve(s *apiextensionsv1.JSONSchemaProps, keys []string) error {
	// target for a type that contains itself
	reference, target := *s, &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	if !slices.Contains(d.stack, *s.Ref) {
		var err error
		if target, err = d.structural(*s.Ref, keys); err != nil {
			return err
		}
	}
	*s = *target
	s.Description, s.Default = cmp.Or(reference.Description, s.Description), reference.Default
	return nil
}

// dropZero drops a default that equals the Go zero value. The schema may not permit that value.
func dropZero(s *apiextensionsv1.JSONSchemaProps) {
	if s.Default != nil && slices.Contains([]string{"{}", `""`, "0", "false", "null"}, string(s.Default.Raw)) {
		s.Default = nil
	}
}
