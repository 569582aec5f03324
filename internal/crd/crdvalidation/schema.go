package crdvalidation

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/crd/cel"
	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

var propertyTypes = []string{"array", "boolean", "integer", "number", "object", "string"}

// Keywords whose presence matters, also if their values are empty.
var (
	additionalItemsKeyword = schema.SetOf("additionalItems")
	dependenciesKeyword    = schema.SetOf("dependencies")
	refKeyword             = schema.SetOf("$ref")
	preserveKeyword        = schema.SetOf("x-kubernetes-preserve-unknown-fields")
	listTypeKeyword        = schema.SetOf(listTypeField)
	mapTypeKeyword         = schema.SetOf(mapTypeField)
	itemsKeyword           = schema.SetOf("items")
)

// requiresStructural reports whether a schema uses extensions that only structural schemas may have.
func requiresStructural(n *schema.Node) bool {
	return n.Embedded || n.IntOrString || n.Set&(preserveKeyword|listTypeKeyword) != 0 || len(n.ListMapKeys) > 0 ||
		n.Rules != ""
}

// isContradictory reports whether a schema has additionalProperties: false. The documentation forbids this, but
// upstream's validation accepts it.
func isContradictory(n *schema.Node) bool { return n.Additional != nil && !n.Additional.Allows }

// validateSchema validates a compiled schema of a version. It compiles rules and validates defaults only if the
// structure is valid. Upstream also tries to create a validator, which is not necessary here: it cannot fail for a
// schema that passes the other checks.
func validateSchema(c *crd.Compiled, status bool, o options, path *field.Path) (errs field.ErrorList) {
	root, path := c.Schema.Root, path.Child("openAPIV3Schema")
	if status {
		errs = append(errs, rootWithStatus(root, path)...)
	}
	if root.Nullable {
		errs = append(errs, field.Forbidden(path.Child("nullable"), "nullable cannot be true at the root"))
	}
	w, at := walker{options: o}, schemaContext{root: true}
	var unsupported error
	if o.structural {
		var found field.ErrorList
		found, unsupported = root.Violations(path)
		if unsupported == nil && len(found) == 0 {
			if found = c.CheckDefaults(context.Background(), path, w.prunedDefaults); len(found) == 0 {
				at.rules = cel.NewRuleNode(root)
			}
		}
		errs = append(errs, found...)
	}
	w.schema(root, path, at)
	errs = append(errs, w.errs...)
	if errs = append(errs, w.ruleErrs...); len(errs) == 0 && unsupported != nil {
		errs = append(errs, field.Invalid(path, "", unsupported.Error()))
	}
	return append(errs, w.costs.exceeded(path)...)
}

// rootFields contains the fields of upstream's type that the root may have if the status subresource is enabled.
var rootFields = []string{"Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum",
	"ExclusiveMinimum", "MaxLength", "MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf",
	"Required", "Items", "Properties", "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations"}

// rootWithStatus returns an error for the first field of the root that rootFields does not contain.
func rootWithStatus(root *schema.Node, path *field.Path) field.ErrorList {
	if root.Set&^allowedAtRoot == 0 && (root.WrittenType() == "" || root.Type == "object") {
		return nil
	}
	props, err := root.Upstream()
	if err != nil {
		return field.ErrorList{field.InternalError(path, err)}
	}
	v := reflect.ValueOf(props).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch {
		case v.Field(i).IsZero():
		case name == "Type" && props.Type != "object":
			return field.ErrorList{field.Invalid(path.Child("type"), props.Type,
				`only "object" is allowed as the type at the root of the schema if the status subresource is enabled`)}
		case !slices.Contains(rootFields, name):
			return field.ErrorList{field.Invalid(path, *props,
				fmt.Sprintf(`only %v fields are allowed at the root of the schema if the status subresource is enabled`,
					rootFields))}
		}
	}
	return nil
}

// allowedAtRoot contains the keywords of the fields in rootFields.
var allowedAtRoot = schema.SetOf("description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum",
	"exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "multipleOf",
	"required", "items", "properties", "externalDocs", "example", "x-kubernetes-preserve-unknown-fields",
	"x-kubernetes-validations")

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

func (w *walker) schema(n *schema.Node, path *field.Path, at schemaContext) {
	before := len(w.errs)
	w.keywords(n, path, at)
	below := at
	below.root = false
	if a := n.Additional; a != nil {
		if w.contradictions && !a.Allows {
			w.add(field.Forbidden(path.Child("additionalProperties"), "additionalProperties cannot be set to false"))
		}
		if len(n.Properties) > 0 && (!a.Allows || a.Schema != nil) {
			w.add(field.Forbidden(path.Child("additionalProperties"),
				"additionalProperties and properties are mutual exclusive"))
		}
		sub := below
		sub.rules = at.rules.Additional()
		if at.meta {
			sub.noDefault = "inside additionalProperties applying to object metadata"
		}
		if a.Schema != nil {
			w.schema(a.Schema, path.Child("additionalProperties"), sub)
		}
	}
	w.properties(n, path, at, below)
	w.valueValidations(n, path, below)
	w.items(n, path, below)
	w.mergeStrategy(n, path)
	w.rules(n, path)
	if len(w.errs) == before && at.rules != nil {
		w.compiledRules(n, path, at)
	}
}

func (w *walker) properties(n *schema.Node, path *field.Path, at, below schemaContext) {
	if len(n.Properties) == 0 {
		return
	}
	path = path.Child("properties")
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		sub := below
		sub.rules = at.rules.Property(name)
		if (at.root || n.Embedded) && schema.IsTypeOrMeta(name) {
			sub.meta = true
			if at.root {
				sub.noDefault = "in top-level " + name
			}
		}
		w.schema(n.Properties[name], path.Key(name), sub)
	}
}

func (w *walker) items(n *schema.Node, path *field.Path, below schemaContext) {
	if n.Set&itemsKeyword == 0 {
		return
	}
	if below.uncorrelatable == nil && n.ListType != "map" {
		below.uncorrelatable = path
	}
	below.rules = below.rules.Items()
	if n.Items != nil {
		w.schema(n.Items, path.Child("items"), below)
	}
	below.rules = nil
	w.each(n.Others().ItemSchemas, path.Child("items"), below)
}

// each validates the schemas in a list.
func (w *walker) each(list []*schema.Node, path *field.Path, at schemaContext) {
	for i, n := range list {
		w.schema(n, path.Index(i), at)
	}
}

func (w *walker) valueValidations(n *schema.Node, path *field.Path, below schemaContext) {
	below.rules = nil
	c := n.Checked()
	if c.Not != nil {
		w.schema(c.Not, path.Child("not"), below)
	}
	w.each(c.AllOf, path.Child("allOf"), below)
	w.each(c.OneOf, path.Child("oneOf"), below)
	w.each(c.AnyOf, path.Child("anyOf"), below)
	r := n.Others()
	for _, name := range slices.Sorted(maps.Keys(r.Definitions)) {
		w.schema(r.Definitions[name], path.Child("definitions").Key(name), below)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Dependencies)) {
		if s := r.Dependencies[name].Schema; s != nil {
			w.schema(s, path.Child("dependencies").Key(name), below)
		}
	}
}

// keywords checks that n has only supported keywords.
func (w *walker) keywords(n *schema.Node, path *field.Path, at schemaContext) {
	if w.propertyTypes && n.WrittenType() != "" && !slices.Contains(propertyTypes, n.Type) {
		w.add(field.NotSupported(path.Child("type"), n.Type, propertyTypes))
	}
	if n.Default != "" && at.noDefault != "" {
		w.add(field.Forbidden(path.Child("default"), "must not be set "+at.noDefault))
	}
	r := n.Others()
	for _, k := range []struct {
		name string
		set  bool
	}{
		{"id", r.ID != ""}, {"additionalItems", n.Set&additionalItemsKeyword != 0},
		{"patternProperties", len(r.PatternProperties) > 0}, {"definitions", len(r.Definitions) > 0},
		{"dependencies", n.Set&dependenciesKeyword != 0}, {"$ref", n.Set&refKeyword != 0},
	} {
		if k.set {
			w.add(field.Forbidden(path.Child(k.name), k.name+" is not supported"))
		}
	}
	if n.Type == "null" {
		w.add(field.Forbidden(path.Child("type"), "type cannot be set to null, use nullable as an alternative"))
	}
	if len(r.ItemSchemas) > 0 {
		w.add(field.Forbidden(path.Child("items"), "items must be a schema object and not an array"))
	}
	if at.meta && n.Embedded {
		w.add(field.Forbidden(path.Child("x-kubernetes-embedded-resource"), "must not be used inside of resource meta"))
	}
	if r.UniqueItems {
		w.add(field.Forbidden(path.Child("uniqueItems"),
			"uniqueItems cannot be set to true since the runtime complexity becomes quadratic"))
	}
}
