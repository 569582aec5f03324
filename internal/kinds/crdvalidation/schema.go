package crdvalidation

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/crd/cel"
)

type schema = apiextensions.JSONSchemaProps

var propertyTypes = []string{"array", "boolean", "integer", "number", "object", "string"}

func schemasOf(s *apiextensions.CustomResourceDefinitionSpec) (all []*schema) {
	if s.Validation != nil && s.Validation.OpenAPIV3Schema != nil {
		all = append(all, s.Validation.OpenAPIV3Schema)
	}
	for i := range s.Versions {
		if v := s.Versions[i].Schema; v != nil && v.OpenAPIV3Schema != nil {
			all = append(all, v.OpenAPIV3Schema)
		}
	}
	return all
}

// children calls f with each schema directly below s, until f returns true. The schema is valid only during the
// call.
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
		child := reusableSchema(all)
		for name := range all {
			*child = all[name]
			if f(child) {
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

// reusableSchema returns an empty schema, which an iteration over the map all reuses for each entry because schemas
// are large. It returns nil if the map is empty.
func reusableSchema[T any](all map[string]T) *schema {
	if len(all) == 0 {
		return nil
	}
	return &schema{}
}

// anywhere reports whether f returns true for s, which may be nil, or for a schema below it.
func anywhere(s *schema, f func(*schema) bool) bool {
	return s != nil && (f(s) || children(s, func(child *schema) bool { return anywhere(child, f) }))
}

// requiresStructural reports whether a schema uses extensions that only structural schemas may have.
func requiresStructural(s *schema) bool {
	return s.XEmbeddedResource || s.XPreserveUnknownFields != nil || s.XIntOrString || len(s.XListMapKeys) > 0 ||
		s.XListType != nil || len(s.XValidations) > 0
}

// isContradictory reports whether a schema has additionalProperties: false. The documentation forbids this, but
// upstream's validation accepts it.
func isContradictory(s *schema) bool {
	return s.AdditionalProperties != nil && !s.AdditionalProperties.Allows
}

// validationSchema validates the schema of a version, whose JSON is js. It compiles rules and validates defaults only
// if the structure is valid. Upstream also tries to create a validator, which is not necessary here: it cannot fail
// for a schema that passes the other checks.
func validationSchema(v *apiextensions.CustomResourceValidation, js []byte, status bool, o options,
	path *field.Path) (errs field.ErrorList) {
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
	w, at := walker{options: o}, schemaContext{root: true}
	var unsupported error
	if o.structural {
		var found field.ErrorList
		found, unsupported = NonStructural(s, path)
		errs = append(errs, found...)
		if unsupported == nil && len(found) == 0 {
			errs = append(errs, w.compile(js, path, &at)...)
		}
	}
	w.schema(s, path, at)
	errs = append(errs, w.errs...)
	if errs = append(errs, w.ruleErrs...); len(errs) == 0 && unsupported != nil {
		errs = append(errs, field.Invalid(path, "", unsupported.Error()))
	}
	return append(errs, w.costs.exceeded(path)...)
}

// compile validates the defaults of the schema js. If they are valid, it sets at.rules, which enables the compilation
// of rules.
func (w *walker) compile(js []byte, path *field.Path, at *schemaContext) field.ErrorList {
	s, err := crd.Compile(js, false)
	if err != nil {
		return field.ErrorList{field.InternalError(path, err)}
	}
	errs := s.CheckDefaults(context.Background(), path, w.prunedDefaults)
	if len(errs) == 0 {
		at.rules = cel.NewRuleNode(s.Schema.Root)
	}
	return errs
}

// rootFields contains the keywords that the root may have if the status subresource is enabled.
var rootFields = []string{"Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum",
	"ExclusiveMinimum", "MaxLength", "MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf",
	"Required", "Items", "Properties", "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations"}

// rootWithStatus returns an error for the first keyword of s that rootFields does not contain.
func rootWithStatus(s *schema, path *field.Path) field.ErrorList {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch {
		case v.Field(i).IsZero():
		case name == "Type" && s.Type != "object":
			return field.ErrorList{field.Invalid(path.Child("type"), s.Type,
				`only "object" is allowed as the type at the root of the schema if the status subresource is enabled`)}
		case !slices.Contains(rootFields, name):
			return field.ErrorList{field.Invalid(path, *s,
				fmt.Sprintf(`only %v fields are allowed at the root of the schema if the status subresource is enabled`,
					rootFields))}
		}
	}
	return nil
}

// walker validates each schema of a tree.
type walker struct {
	options
	errs     field.ErrorList
	ruleErrs field.ErrorList // reported only if there are no other errors
	costs    costs
}

// schemaContext describes the position of a schema.
type schemaContext struct {
	root      bool
	meta      bool   // inside apiVersion, kind or metadata of an object
	noDefault string // reason why defaults are forbidden; "" means that they are allowed

	rules          *cel.RuleNode // nil means that rules are not compiled
	uncorrelatable *field.Path   // path of the first enclosing list whose items have no keys
}

func (w *walker) add(errs ...*field.Error) { w.errs = append(w.errs, errs...) }

func (w *walker) schema(s *schema, path *field.Path, at schemaContext) {
	if s == nil {
		return
	}
	before := len(w.errs)
	w.keywords(s, path, at)
	below := at
	below.root = false
	if a := s.AdditionalProperties; a != nil {
		if w.contradictions && !a.Allows {
			w.add(field.Forbidden(path.Child("additionalProperties"), "additionalProperties cannot be set to false"))
		}
		if len(s.Properties) > 0 && (!a.Allows || a.Schema != nil) {
			w.add(field.Forbidden(path.Child("additionalProperties"),
				"additionalProperties and properties are mutual exclusive"))
		}
		sub := below
		sub.rules = at.rules.Additional()
		if at.meta {
			sub.noDefault = "inside additionalProperties applying to object metadata"
		}
		w.schema(a.Schema, path.Child("additionalProperties"), sub)
	}
	w.properties(s, path, at, below)
	w.valueValidations(s, path, below)
	w.items(s, path, below)
	w.mergeStrategy(s, path)
	w.rules(s, path)
	if len(w.errs) == before && at.rules != nil {
		w.compiledRules(s, path, at)
	}
}

func (w *walker) properties(s *schema, path *field.Path, at, below schemaContext) {
	if len(s.Properties) == 0 {
		return
	}
	child := &schema{}
	path = path.Child("properties")
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		sub := below
		*child = s.Properties[name]
		sub.rules = at.rules.Property(name)
		if (at.root || s.XEmbeddedResource) && (name == "metadata" || name == "kind" || name == "apiVersion") {
			sub.meta = true
			if at.root {
				sub.noDefault = "in top-level " + name
			}
		}
		w.schema(child, path.Key(name), sub)
	}
}

func (w *walker) items(s *schema, path *field.Path, below schemaContext) {
	if s.Items == nil {
		return
	}
	if below.uncorrelatable == nil && (s.XListType == nil || *s.XListType != "map") {
		below.uncorrelatable = path
	}
	below.rules = below.rules.Items()
	w.schema(s.Items.Schema, path.Child("items"), below)
	below.rules = nil
	for i := range s.Items.JSONSchemas {
		w.schema(&s.Items.JSONSchemas[i], path.Child("items").Index(i), below)
	}
}

func (w *walker) valueValidations(s *schema, path *field.Path, below schemaContext) {
	below.rules = nil
	if s.Not != nil {
		w.schema(s.Not, path.Child("not"), below)
	}
	for _, j := range []struct {
		name string
		all  []schema
	}{{"allOf", s.AllOf}, {"oneOf", s.OneOf}, {"anyOf", s.AnyOf}} {
		for i := range j.all {
			w.schema(&j.all[i], path.Child(j.name).Index(i), below)
		}
	}
	if len(s.Definitions)+len(s.Dependencies) == 0 {
		return // no accepted schema has them
	}
	for _, name := range slices.Sorted(maps.Keys(s.Definitions)) {
		child := s.Definitions[name]
		w.schema(&child, path.Child("definitions").Key(name), below)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Dependencies)) {
		w.schema(s.Dependencies[name].Schema, path.Child("dependencies").Key(name), below)
	}
}

// keywords checks that s has only supported keywords.
func (w *walker) keywords(s *schema, path *field.Path, at schemaContext) {
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
		{"id", s.ID != ""}, {"additionalItems", s.AdditionalItems != nil}, {"patternProperties",
			len(s.PatternProperties) > 0},
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
		w.add(field.Forbidden(path.Child("uniqueItems"),
			"uniqueItems cannot be set to true since the runtime complexity becomes quadratic"))
	}
}
