package crdvalidation

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Structural schemas are described in the API documentation of CustomResourceDefinition ("Specifying a
// structural schema"): every value has one type, and junctors only restrict what is
// specified outside of them.

// unsupportedIn is why s cannot even be asked whether it is structural.
func unsupportedIn(s *schema) (err error) {
	anywhere(s, func(s *schema) bool {
		switch {
		case s.ID != "":
			err = errUnsupported("id")
		case s.Schema != "":
			err = errUnsupported("schema")
		case s.Ref != nil && *s.Ref != "":
			err = errUnsupported("$ref")
		case len(s.PatternProperties) > 0:
			err = errUnsupported("patternProperties")
		case len(s.Dependencies) > 0:
			err = errUnsupported("dependencies")
		case s.AdditionalItems != nil:
			err = errUnsupported("additionalItems")
		case len(s.Definitions) > 0:
			err = errUnsupported("definitions")
		case s.XPreserveUnknownFields != nil && !*s.XPreserveUnknownFields:
			err = errors.New("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined")
		case s.Items != nil && len(s.Items.JSONSchemas) > 0:
			err = errors.New("OpenAPIV3Schema 'items' must be a schema, but is an array")
		}
		return err != nil
	})
	return err
}

func errUnsupported(keyword string) error {
	return fmt.Errorf("OpenAPIV3Schema '%s' is not supported", keyword)
}

func isNonStructural(s *schema) bool { return unsupportedIn(s) != nil || len(structural(s, nil)) > 0 }

// NonStructural says why a schema of an accepted CRD is not structural: the
// reason and message of the condition NonStructuralSchema, or nothing.
func NonStructural(s *schema, path *field.Path) (errs field.ErrorList, unsupported error) {
	if unsupported = unsupportedIn(s); unsupported != nil {
		return nil, unsupported
	}
	return structural(s, path), nil
}

// structural is all violations, sorted.
func structural(s *schema, path *field.Path) field.ErrorList {
	c := structure{}
	c.schema(s, rootLevel, path)
	c.complete(s, s, path, path, false)
	slices.SortStableFunc(c.errs, func(a, b *field.Error) int { return strings.Compare(a.Error(), b.Error()) })
	return c.errs
}

type level int

const (
	rootLevel level = iota
	itemLevel
	fieldLevel
)

type structure struct{ errs field.ErrorList }

func (c *structure) add(err *field.Error) { c.errs = append(c.errs, err) }

func items(s *schema) *schema {
	if s == nil || s.Items == nil {
		return nil
	}
	return s.Items.Schema
}

// schema checks a schema that specifies a value.
func (c *structure) schema(s *schema, l level, path *field.Path) {
	if s == nil {
		return
	}
	if s.Type == "array" && items(s) == nil {
		c.add(field.Required(path.Child("items"), "must be specified"))
	}
	if below := items(s); below != nil {
		c.schema(below, itemLevel, path.Child("items"))
	}
	if len(s.Properties) > 0 {
		child, at := &schema{}, path.Child("properties")
		for name := range s.Properties {
			*child = s.Properties[name]
			c.schema(child, fieldLevel, at.Key(name))
		}
	}
	if a := s.AdditionalProperties; a != nil {
		if l == rootLevel {
			c.add(field.Forbidden(path.Child("additionalProperties"), "must not be used at the root"))
		}
		if s.XEmbeddedResource {
			c.add(field.Forbidden(path.Child("additionalProperties"), "must not be used if x-kubernetes-embedded-resource is set"))
		}
		c.schema(a.Schema, fieldLevel, path.Child("additionalProperties"))
	}
	const intOrString = "must be false if x-kubernetes-int-or-string is true"
	preserves := s.XPreserveUnknownFields != nil
	if s.XIntOrString && preserves {
		c.add(field.Invalid(path.Child("x-kubernetes-preserve-unknown-fields"), true, intOrString))
	}
	if s.XIntOrString && s.XEmbeddedResource {
		c.add(field.Invalid(path.Child("x-kubernetes-embedded-resource"), true, intOrString))
	}
	c.values(s, isIntOrString(s.AnyOf), len(s.AllOf) > 0 && isIntOrString(s.AllOf[0].AnyOf), path)
	c.typed(s, l, path)
	c.meta(s, l, path)
	if s.XEmbeddedResource && !preserves && len(s.Properties) == 0 {
		c.add(field.Required(path.Child("properties"), "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"))
	}
}

// isIntOrString is the one form of anyOf that may name types.
func isIntOrString(anyOf []schema) bool {
	return len(anyOf) == 2 && anyOf[0].Type == "integer" && anyOf[1].Type == "string" && isOnlyType(anyOf[0]) && isOnlyType(anyOf[1])
}

// isOnlyType is true of a schema that names a type and says nothing else.
func isOnlyType(s schema) bool {
	s.Type = ""
	if a := s.AdditionalProperties; a != nil && a.Schema == nil && !a.Allows {
		s.AdditionalProperties = nil
	}
	return saysNothing(s)
}

// saysNothing looks at what upstream's structural form keeps of a schema: of what may be empty, that is required, properties,
// list keys and rules.
func saysNothing(s schema) bool {
	if len(s.Enum) == 0 {
		s.Enum = nil
	}
	for _, list := range []*[]schema{&s.AllOf, &s.AnyOf, &s.OneOf} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	if s.Items != nil && s.Items.Schema == nil && len(s.Items.JSONSchemas) == 0 {
		s.Items = nil
	}
	if s.Ref != nil && *s.Ref == "" {
		s.Ref = nil
	}
	if len(s.PatternProperties)+len(s.Definitions)+len(s.Dependencies) == 0 {
		s.PatternProperties, s.Definitions, s.Dependencies = nil, nil, nil
	}
	return reflect.ValueOf(&s).Elem().IsZero()
}

func (c *structure) typed(s *schema, l level, path *field.Path) {
	if l != rootLevel && !s.XEmbeddedResource && s.Type != "" {
		return // as nearly all are
	}
	at := path.Child("type")
	switch {
	case s.XEmbeddedResource && s.Type == "" && !s.XIntOrString: // means object, which upstream insists on being said
	case s.XEmbeddedResource && s.Type == "":
		c.add(field.Required(at, "must be object if x-kubernetes-embedded-resource is true"))
	case s.XEmbeddedResource && s.Type != "object":
		c.add(field.Invalid(at, s.Type, "must be object if x-kubernetes-embedded-resource is true"))
	case s.Type == "" && !s.XIntOrString && s.XPreserveUnknownFields == nil:
		where := []string{"at the root", "for specified array items", "for specified object fields"}
		c.add(field.Required(at, "must not be empty "+where[l]))
	}
	if l == rootLevel && s.Type != "" && s.Type != "object" {
		c.add(field.Invalid(at, s.Type, "must be object at the root"))
	}
}

// meta checks what is said of apiVersion, kind and metadata of an object.
func (c *structure) meta(s *schema, l level, path *field.Path) {
	if l != rootLevel && !s.XEmbeddedResource {
		return
	}
	at := path.Child("properties")
	for _, name := range []string{"kind", "apiVersion"} {
		if p, ok := s.Properties[name]; ok && p.Type != "string" {
			c.add(field.Invalid(at.Key(name).Child("type"), p.Type, "must be string"))
		}
	}
	m, ok := s.Properties["metadata"]
	if !ok {
		return
	}
	if m.Type != "object" {
		c.add(field.Invalid(at.Key("metadata").Child("type"), m.Type, "must be object"))
	}
	if l == rootLevel && saysMore(m) {
		c.add(field.Forbidden(at.Key("metadata"), "must not specify anything other than name and generateName, but metadata is implicitly specified"))
	}
}

// saysMore is true of a schema of metadata that restricts more than the names.
func saysMore(m schema) bool {
	m.Type, m.Default = "", nil
	for name := range m.Properties {
		if name != "name" && name != "generateName" {
			return true
		}
	}
	m.Properties = nil
	return !saysNothing(m)
}

// values checks what restricts the value of s.
func (c *structure) values(s *schema, skipAnyOf, skipFirst bool, path *field.Path) {
	for i := range s.AnyOf {
		if !skipAnyOf {
			c.nested(&s.AnyOf[i], false, path.Child("anyOf").Index(i))
		}
	}
	for i := range s.AllOf {
		c.nested(&s.AllOf[i], skipFirst && i == 0, path.Child("allOf").Index(i))
	}
	for i := range s.OneOf {
		c.nested(&s.OneOf[i], false, path.Child("oneOf").Index(i))
	}
	if s.Not != nil {
		c.nested(s.Not, false, path.Child("not"))
	}
	if s.Pattern == "" {
		return
	}
	if _, err := regexp.Compile(s.Pattern); err != nil {
		c.add(field.Invalid(path.Child("pattern"), s.Pattern, fmt.Sprintf("must be a valid regular expression, but isn't: %v", err)))
	}
}

// nested checks a schema inside of a junctor: it may only restrict.
func (c *structure) nested(s *schema, skipAnyOf bool, path *field.Path) {
	if s == nil {
		return
	}
	c.values(s, skipAnyOf, false, path)
	c.nested(items(s), false, path.Child("items"))
	child := room(s.Properties)
	for name := range s.Properties {
		*child = s.Properties[name]
		c.nested(child, false, path.Child("properties").Key(name))
	}
	a := s.AdditionalProperties
	for _, k := range []struct {
		name, must string
		set        bool
	}{
		{"type", "be empty", s.Type != ""},
		{"additionalProperties", "be undefined", a != nil && (a.Schema != nil || a.Allows)},
		{"default", "be undefined", s.Default != nil && *s.Default != nil},
		{"title", "be empty", s.Title != ""},
		{"description", "be empty", s.Description != ""},
		{"nullable", "be false", s.Nullable},
		{"x-kubernetes-preserve-unknown-fields", "be false", s.XPreserveUnknownFields != nil},
		{"x-kubernetes-embedded-resource", "be false", s.XEmbeddedResource},
		{"x-kubernetes-int-or-string", "be false", s.XIntOrString},
		{listKeysField, "be empty", len(s.XListMapKeys) > 0},
		{listTypeField, "be undefined", s.XListType != nil},
		{mapTypeField, "be undefined", s.XMapType != nil},
		{"x-kubernetes-validations", "be empty", len(s.XValidations) > 0},
	} {
		if k.set {
			c.add(field.Forbidden(path.Child(k.name), "must "+k.must+" to be structural"))
		}
	}
	if _, ok := s.Properties["metadata"]; ok {
		c.add(field.Forbidden(path.Child("properties").Key("metadata"), "must not be specified in a nested context"))
	}
}

// complete checks that what v, which lies inside of junctors if nested, restricts is specified
// by s. sPath and vPath are where they lie.
func (c *structure) complete(v, s *schema, sPath, vPath *field.Path, nested bool) {
	if v == nil {
		return
	}
	if s == nil {
		c.add(field.Required(sPath, "because it is defined in "+vPath.String()))
		return
	}
	if v.Not != nil {
		c.complete(v.Not, s, sPath, vPath.Child("not"), true)
	}
	for _, j := range []struct {
		name string
		all  []schema
	}{{"allOf", v.AllOf}, {"anyOf", v.AnyOf}, {"oneOf", v.OneOf}} {
		for i := range j.all {
			c.complete(&j.all[i], s, sPath, vPath.Child(j.name).Index(i), true)
		}
	}
	if !nested {
		return
	}
	c.complete(items(v), items(s), sPath.Child("items"), vPath.Child("items"), true)
	for name := range v.Properties {
		child, at := v.Properties[name], vPath.Child("properties").Key(name)
		if p, ok := s.Properties[name]; ok {
			c.complete(&child, &p, sPath.Child("properties").Key(name), at, true)
		} else {
			c.complete(&child, nil, sPath.Child("properties").Key(name), at, true)
		}
	}
}
