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

// describe gives the versions of crd that have no schema the one that is generated of their Go type.
func (k *Kind) describe(crd *apiextensionsv1.CustomResourceDefinition) error {
	var all definitions
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Schema != nil {
			continue
		}
		if k.OpenAPI == nil {
			return fmt.Errorf("version %s has neither a schema nor, as there is no OpenAPI, a generated one", v.Name)
		}
		if all.byName == nil {
			all.read(machinery.GetOpenAPIDefinitions) // types of apimachinery, which need not be generated again
			all.read(k.OpenAPI)
		}
		obj, err := k.Scheme.New(schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind})
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

// definitions are generated schemas, by the names that OpenAPI has for them. They become structural ones, which refer to no others.
type definitions struct {
	byName map[string]common.OpenAPIDefinition
	within []string // those that are being written out
}

func (d *definitions) read(generated common.GetOpenAPIDefinitions) {
	if d.byName == nil {
		d.byName = map[string]common.OpenAPIDefinition{}
	}
	for name, definition := range generated(func(name string) spec.Ref { return spec.MustCreateRef(modelName(name)) }) {
		d.byName[modelName(name)] = definition
	}
}

// modelName is that of a type by which it is defined or referred to: its model name, or the path of its package and its own.
func modelName(name string) string {
	if strings.Contains(name, "/") {
		return util.ToRESTFriendlyName(name)
	}
	return name
}

// structural is the schema of a name. keys are those of the list of which it is an item.
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
	if err := json.Unmarshal(text, s); err != nil { // extensions that are none of a CustomResourceDefinition's are left out
		return nil, err
	}
	d.within = append(d.within, name)
	defer func() { d.within = d.within[:len(d.within)-1] }()
	return s, d.complete(s, keys)
}

// complete makes s structural. Whether a value is of the right type, the Go type has the last word on: what cannot be said by a
// structural schema is left open.
func (d *definitions) complete(s *apiextensionsv1.JSONSchemaProps, keys []string) error {
	if s.Ref != nil {
		return d.follow(s, keys)
	}
	switch {
	case len(s.OneOf) > 0: // of an integer or a number, and a string
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
			p.Nullable = true // as Go writes what is not set
		}
		s.Properties[name] = p
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		dropZero(s.AdditionalProperties.Schema)
		return d.complete(s.AdditionalProperties.Schema, nil)
	}
	if s.Items == nil || s.Items.Schema == nil {
		s.XListType = nil // which is of lists alone, whatever a type has been marked with
		return nil
	}
	item := s.Items.Schema
	dropZero(item)
	err := d.complete(item, s.XListMapKeys)
	for _, key := range s.XListMapKeys {
		if p, ok := item.Properties[key]; !ok || p.Default == nil && !slices.Contains(item.Required, key) {
			s.XListType, s.XListMapKeys = new("atomic"), nil // items may be without the key
			break
		}
	}
	return err
}

// follow puts what s refers to in its place.
func (d *definitions) follow(s *apiextensionsv1.JSONSchemaProps, keys []string) error {
	said, is := *s, &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)} // a type that contains itself
	if !slices.Contains(d.within, *s.Ref) {
		var err error
		if is, err = d.structural(*s.Ref, keys); err != nil {
			return err
		}
	}
	*s = *is
	s.Description, s.Default = cmp.Or(said.Description, s.Description), said.Default
	return nil
}

// dropZero drops a default that says what Go says of a field that is not set. It might be no value that the schema allows.
func dropZero(s *apiextensionsv1.JSONSchemaProps) {
	if s.Default != nil && slices.Contains([]string{"{}", `""`, "0", "false", "null"}, string(s.Default.Raw)) {
		s.Default = nil
	}
}
