package crdvalidation

import (
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/crd/cel"
	"github.com/trellis-k8s/trellis/internal/crd/schema"
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
}

// strictOptions returns the options for a new CRD. They select all requirements.
func strictOptions(c CRD) options {
	return options{
		propertyTypes: true, structural: true, atomicSets: true, listMapKeys: true, contradictions: true,
		prunedDefaults: true, checker: cel.NewRuleChecker(c.json(), expressions{}.has),
	}
}

// ratchetedOptions returns the options for an update of old. They omit the requirements that old violates.
func ratchetedOptions(c, old CRD) options {
	return options{
		propertyTypes: !old.any(func(n *schema.Node) bool {
			return n.WrittenType() != "" && !slices.Contains(propertyTypes, n.Type)
		}),
		structural: !slices.ContainsFunc(old.compiled(), func(s *crd.Compiled) bool {
			return !s.Schema.Root.IsStructural()
		}),
		atomicSets:     !old.any(func(n *schema.Node) bool { return len(atomicSetItems(n, nil)) > 0 }),
		contradictions: !old.any(isContradictory),
		listMapKeys:    !old.any(func(n *schema.Node) bool { return len(listMapKeys(n, nil)) > 0 }),
		manySelectable: manySelectable(c.CustomResourceDefinition, old.CustomResourceDefinition),
		prunedDefaults: !old.hasUnprunedDefaults(),
		unchanged:      func(version string) bool { return hasSameSchema(c, old, version) },
		checker:        cel.NewRuleChecker(c.json(), old.expressions().has),
	}
}

// json returns the JSON of all schemas.
func (c CRD) json() (all [][]byte) {
	for _, s := range c.compiled() {
		all = append(all, s.Schema.JSON)
	}
	return all
}

// hasUnprunedDefaults reports whether a structural schema of c has defaults with unknown fields.
func (c CRD) hasUnprunedDefaults() bool {
	for _, s := range c.compiled() {
		if s.Schema.Root.Has(schema.Defaults) && s.Schema.Root.IsStructural() && s.HasUnprunedDefaults() {
			return true
		}
	}
	return false
}

// hasSameSchema reports whether a version has the same schema in c and old.
func hasSameSchema(c, old CRD, version string) bool {
	now, err := apiextensions.GetSchemaForVersion(c.CustomResourceDefinition, version)
	if err != nil {
		return false
	}
	was, err := apiextensions.GetSchemaForVersion(old.CustomResourceDefinition, version)
	return err == nil && (now == nil) == (was == nil) && schema.EqualJSON(c.Root(now), old.Root(was))
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
