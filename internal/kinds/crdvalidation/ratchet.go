package crdvalidation

import (
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/crd/cel"
)

// options selects the requirements that the schemas of a CRD must meet. For an update, requirements that the stored
// CRD violates are not selected.
type options struct {
	propertyTypes  bool
	structural     bool
	atomicSets     bool
	listMapKeys    bool
	contradictions bool            // reject contradictions that upstream's validation accepts
	manySelectable map[string]bool // versions that may have more than validation.MaxSelectableFields selectable fields
	checker        *cel.RuleChecker
	unchanged      func(version string) bool // reports whether the schema of the version is unchanged
	costly         func() bool               // reports whether expressions of any cost are allowed
	prunedDefaults bool                      // reject defaults with unknown fields
	schemas        schemaJSON
}

// strictOptions returns the options for a new CRD. They select all requirements.
func strictOptions(crd CRD) options {
	schemas := crd.schemas()
	return options{
		propertyTypes: true, structural: true, atomicSets: true, listMapKeys: true, contradictions: true,
		prunedDefaults: true,
		schemas:        schemas, checker: cel.NewRuleChecker(schemas.all(), expressions{}.has),
	}
}

// ratchetedOptions returns the options for an update of old. They omit the requirements that old violates.
func ratchetedOptions(crd, old CRD) options {
	all, schemas := schemasOf(&old.Spec), crd.schemas()
	has := func(f func(*schema) bool) bool {
		return slices.ContainsFunc(all, func(s *schema) bool { return anywhere(s, f) })
	}
	return options{
		propertyTypes:  !has(func(s *schema) bool { return s.Type != "" && !slices.Contains(propertyTypes, s.Type) }),
		structural:     !slices.ContainsFunc(all, isNonStructural),
		atomicSets:     !has(func(s *schema) bool { return len(atomicSetItems(s, nil)) > 0 }),
		contradictions: !has(isContradictory),
		listMapKeys:    !has(func(s *schema) bool { return len(listMapKeys(s, field.NewPath(""))) > 0 }),
		manySelectable: manySelectable(crd.CustomResourceDefinition, old.CustomResourceDefinition),
		prunedDefaults: !old.hasUnprunedDefaults(),
		unchanged:      func(version string) bool { return hasSameSchema(crd, old, version) },
		schemas:        schemas,
		checker:        cel.NewRuleChecker(schemas.all(), expressionsIn(&old.Spec).has),
	}
}

// hasUnprunedDefaults reports whether a structural schema of c has defaults with unknown fields.
func (c CRD) hasUnprunedDefaults() bool {
	versions := c.Spec.Versions
	for i, js := range c.schemas().versions {
		v := c.Spec.Validation
		if v == nil && i < len(versions) {
			v = versions[i].Schema
		}
		if v == nil || v.OpenAPIV3Schema == nil || !anywhere(v.OpenAPIV3Schema, hasDefault) ||
			isNonStructural(v.OpenAPIV3Schema) {
			continue
		}
		if s, err := crd.Compile(js, false); err == nil && s.HasUnprunedDefaults() {
			return true
		}
	}
	return false
}

func hasDefault(s *schema) bool { return s.Default != nil }

// hasSameSchema reports whether a version has the same schema in crd and old.
func hasSameSchema(crd, old CRD, version string) bool {
	now, err := apiextensions.GetSchemaForVersion(crd.CustomResourceDefinition, version)
	if err != nil {
		return false
	}
	was, err := apiextensions.GetSchemaForVersion(old.CustomResourceDefinition, version)
	return err == nil && apiequality.Semantic.DeepEqual(now, was)
}

func manySelectable(crd, old *apiextensions.CustomResourceDefinition) map[string]bool {
	allowed := map[string]bool{}
	unchanged := func(version string, fields, was []apiextensions.SelectableField) {
		if len(was) > validation.MaxSelectableFields && apiequality.Semantic.DeepEqual(fields, was) {
			allowed[version] = true
		}
	}
	unchanged("", crd.Spec.SelectableFields, old.Spec.SelectableFields)
	before := map[string][]apiextensions.SelectableField{}
	for i := range old.Spec.Versions {
		before[old.Spec.Versions[i].Name] = old.Spec.Versions[i].SelectableFields
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		unchanged(v.Name, v.SelectableFields, before[v.Name])
	}
	return allowed
}

// hasUnchangedSchema reports whether the CRD has the version and the update does not change its schema.
func (o options) hasUnchangedSchema(s *apiextensions.CustomResourceDefinitionSpec, version string) bool {
	return o.unchanged != nil && o.unchanged(version) &&
		slices.ContainsFunc(s.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool {
			return v.Name == version
		})
}
