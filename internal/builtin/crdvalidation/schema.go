package crdvalidation

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

type schema = apiextensions.JSONSchemaProps

var propertyTypes = []string{"array", "boolean", "integer", "number", "object", "string"}

func schemasOf(s *apiextensions.CustomResourceDefinitionSpec) (all []*schema) {
	if s.Validation != nil && s.Validation.OpenAPIV3Schema != nil {
		all = append(all, s.Validation.OpenAPIV3Schema)
	}
	for i := range s.Versions {
		if !hasNoSchema(&s.Versions[i]) {
			all = append(all, s.Versions[i].Schema.OpenAPIV3Schema)
		}
	}
	return all
}

// children calls f with each schema directly below s, until it returns true.
func children(s *schema, f func(*schema) bool) bool {
	list := func(all []schema) bool {
		for i := range all {
			if f(&all[i]) {
				return true
			}
		}
		return false
	}
	named := func(all map[string]schema) bool {
		for name := range all {
			child := all[name]
			if f(&child) {
				return true
			}
		}
		return false
	}
	one := func(child *schema) bool { return child != nil && f(child) }
	if s.Items != nil && (one(s.Items.Schema) || list(s.Items.JSONSchemas)) ||
		s.AdditionalProperties != nil && one(s.AdditionalProperties.Schema) ||
		s.AdditionalItems != nil && one(s.AdditionalItems.Schema) ||
		list(s.AllOf) || list(s.AnyOf) || list(s.OneOf) || one(s.Not) ||
		named(s.Properties) || named(s.PatternProperties) || named(s.Definitions) {
		return true
	}
	for name := range s.Dependencies {
		if one(s.Dependencies[name].Schema) {
			return true
		}
	}
	return false
}

// anywhere reports whether f is true of s or of anything below it.
func anywhere(s *schema, f func(*schema) bool) bool {
	return f(s) || children(s, func(child *schema) bool { return anywhere(child, f) })
}

// isExtended is true of a schema that uses what only structural schemas can.
func isExtended(s *schema) bool {
	return s.XEmbeddedResource || s.XPreserveUnknownFields != nil || s.XIntOrString || len(s.XListMapKeys) > 0 ||
		s.XListType != nil || len(s.XValidations) > 0
}

// validationSchema checks the schema of a version. What CEL rules mean, and whether defaults fit the
// schema, would be checked here: after structure, and only where nothing is wrong with it.
func validationSchema(v *apiextensions.CustomResourceValidation, status bool, o options, path *field.Path) (errs field.ErrorList) {
	s, path := v.OpenAPIV3Schema, path.Child("openAPIV3Schema")
	if s == nil {
		return nil
	}
	if status {
		errs = append(errs, rootWithStatus(s, path)...)
	}
	if s.Nullable {
		errs = append(errs, field.Forbidden(path.Child("nullable"), "nullable cannot be true at the root"))
	}
	var unsupported error
	if o.structural {
		if unsupported = unsupportedIn(s); unsupported == nil {
			errs = append(errs, structural(s, path)...)
		}
	}
	w := walker{options: o}
	w.schema(s, path, place{root: true})
	errs = append(errs, w.errs...)
	if len(errs) == 0 && unsupported != nil {
		errs = append(errs, field.Invalid(path, "", unsupported.Error()))
	}
	return errs
}

// rootFields are the keywords that the root may have although status is validated by itself.
var rootFields = []string{"Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum", "ExclusiveMinimum", "MaxLength", "MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf", "Required", "Items", "Properties", "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations"}

// rootWithStatus reports the first keyword that is not allowed.
func rootWithStatus(s *schema, path *field.Path) field.ErrorList {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch {
		case v.Field(i).IsZero():
		case name == "Type" && s.Type != "object":
			return field.ErrorList{field.Invalid(path.Child("type"), s.Type, `only "object" is allowed as the type at the root of the schema if the status subresource is enabled`)}
		case !slices.Contains(rootFields, name):
			return field.ErrorList{field.Invalid(path, *s, fmt.Sprintf(`only %v fields are allowed at the root of the schema if the status subresource is enabled`, rootFields))}
		}
	}
	return nil
}

// walker checks each schema of a tree by itself.
type walker struct {
	options
	errs field.ErrorList
}

// place is what a schema's surroundings say of it.
type place struct {
	root      bool
	meta      bool   // inside of apiVersion, kind or metadata of an object
	noDefault string // why defaults are forbidden, "" if they are not
}

func (w *walker) add(errs ...*field.Error) { w.errs = append(w.errs, errs...) }

func (w *walker) schema(s *schema, path *field.Path, at place) {
	if s == nil {
		return
	}
	w.keywords(s, path, at)
	below := at
	below.root = false
	if a := s.AdditionalProperties; a != nil {
		if len(s.Properties) > 0 && (!a.Allows || a.Schema != nil) {
			w.add(field.Forbidden(path.Child("additionalProperties"), "additionalProperties and properties are mutual exclusive"))
		}
		sub := below
		if at.meta {
			sub.noDefault = "inside additionalProperties applying to object metadata"
		}
		w.schema(a.Schema, path.Child("additionalProperties"), sub)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		sub, child := below, s.Properties[name]
		if (at.root || s.XEmbeddedResource) && (name == "metadata" || name == "kind" || name == "apiVersion") {
			sub.meta = true
			if at.root {
				sub.noDefault = "in top-level " + name
			}
		}
		w.schema(&child, path.Child("properties").Key(name), sub)
	}
	w.junctors(s, path, below)
	if s.Items != nil {
		w.schema(s.Items.Schema, path.Child("items"), below)
		for i := range s.Items.JSONSchemas {
			w.schema(&s.Items.JSONSchemas[i], path.Child("items").Index(i), below)
		}
	}
	w.topology(s, path)
	w.rules(s, path)
}

func (w *walker) junctors(s *schema, path *field.Path, below place) {
	w.schema(s.Not, path.Child("not"), below)
	for _, j := range []struct {
		name string
		all  []schema
	}{{"allOf", s.AllOf}, {"oneOf", s.OneOf}, {"anyOf", s.AnyOf}} {
		for i := range j.all {
			w.schema(&j.all[i], path.Child(j.name).Index(i), below)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Definitions)) {
		child := s.Definitions[name]
		w.schema(&child, path.Child("definitions").Key(name), below)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Dependencies)) {
		w.schema(s.Dependencies[name].Schema, path.Child("dependencies").Key(name), below)
	}
}

// keywords checks what may be said at all.
func (w *walker) keywords(s *schema, path *field.Path, at place) {
	if w.propertyTypes && s.Type != "" && !slices.Contains(propertyTypes, s.Type) {
		w.add(field.NotSupported(path.Child("type"), s.Type, propertyTypes))
	}
	if s.Default != nil && at.noDefault != "" {
		w.add(field.Forbidden(path.Child("default"), "must not be set "+at.noDefault))
	}
	for _, k := range []struct {
		name string
		set  bool
	}{
		{"id", s.ID != ""}, {"additionalItems", s.AdditionalItems != nil}, {"patternProperties", len(s.PatternProperties) > 0},
		{"definitions", len(s.Definitions) > 0}, {"dependencies", s.Dependencies != nil}, {"$ref", s.Ref != nil},
	} {
		if k.set {
			w.add(field.Forbidden(path.Child(k.name), k.name+" is not supported"))
		}
	}
	if s.Type == "null" {
		w.add(field.Forbidden(path.Child("type"), "type cannot be set to null, use nullable as an alternative"))
	}
	if s.Items != nil && len(s.Items.JSONSchemas) > 0 {
		w.add(field.Forbidden(path.Child("items"), "items must be a schema object and not an array"))
	}
	if at.meta && s.XEmbeddedResource {
		w.add(field.Forbidden(path.Child("x-kubernetes-embedded-resource"), "must not be used inside of resource meta"))
	}
	if s.UniqueItems {
		w.add(field.Forbidden(path.Child("uniqueItems"), "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"))
	}
}

// rules checks the form of x-kubernetes-validations.
func (w *walker) rules(s *schema, path *field.Path) {
	const noBreaks = "must not contain line breaks"
	for i, r := range s.XValidations {
		at := path.Child("x-kubernetes-validations").Index(i)
		rule, message := strings.TrimSpace(r.Rule), strings.TrimSpace(r.Message)
		switch {
		case rule == "":
			w.add(field.Required(at.Child("rule"), "rule is not specified"))
		case r.Message != "" && message == "":
			w.add(field.Invalid(at.Child("message"), r.Message, "must be non-empty if specified"))
		case hasBreak(message):
			w.add(field.Invalid(at.Child("message"), r.Message, noBreaks))
		case hasBreak(rule) && message == "":
			w.add(field.Required(at.Child("message"), "message must be specified if rule contains line breaks"))
		}
		if r.MessageExpression != "" && strings.TrimSpace(r.MessageExpression) == "" {
			w.add(field.Required(at.Child("messageExpression"), "messageExpression must be non-empty if specified"))
		}
		reasons := []string{"FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"}
		if r.Reason != nil && !slices.Contains(reasons, string(*r.Reason)) {
			w.add(field.NotSupported(at.Child("reason"), *r.Reason, reasons))
		}
		if r.FieldPath == "" {
			continue
		}
		if strings.TrimSpace(r.FieldPath) == "" {
			w.add(field.Invalid(at.Child("fieldPath"), r.FieldPath, "must be non-empty if specified"))
		}
		if hasBreak(r.FieldPath) {
			w.add(field.Invalid(at.Child("fieldPath"), r.FieldPath, noBreaks))
		}
		if _, err := resolve(r.FieldPath, s, true); err != nil && unsupportedIn(s) == nil {
			w.add(field.Invalid(at.Child("fieldPath"), r.FieldPath, "must be a valid path"))
		}
	}
}

func hasBreak(s string) bool { return strings.ContainsAny(s, "\n\r") }
