// Package crdvalidation decides which CustomResourceDefinitions are accepted and says why
// others are not, in upstream's words. It knows neither storage nor how kinds are served.
//
// The checks work on the internal form that upstream's do, because clients see its paths:
// what all versions have in common is at the top of spec ("spec.validation.openAPIV3Schema").
package crdvalidation

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
	ourschema "github.com/trellis-k8s/trellis/internal/schema"
)

// MaxSelectableFields is how many selectable fields a version may have.
const MaxSelectableFields = 8

// options say how strict to be. An update does not tighten what is stored already.
type options struct {
	recognizedReview bool // a webhook must understand a known ConversionReview
	requireSchemas   bool // every version needs a schema
	propertyTypes    bool
	structural       bool
	atomicSets       bool
	listMapKeys      bool
	contradictions   bool            // what a schema may not say although upstream's validation lets it
	caBundle         bool            // the CA bundle of a webhook must be valid
	manySelectable   map[string]bool // versions that may keep more than MaxSelectableFields
	checker          *ourschema.RuleChecker
	unchanged        func(version string) bool // of its schema
	costly           func() bool               // the schema that is checked may keep expressions of any cost
	prunedDefaults   bool                      // defaults may not have unknown fields
	schemas          schemaJSON
}

// CRD is a CustomResourceDefinition that is checked.
type CRD struct {
	*apiextensions.CustomResourceDefinition
	json   []byte      // what it was read from
	read   *schemaJSON // or the schemas, where they are known
	legacy bool        // it was of apiextensions.k8s.io/v1beta1
}

// Read reads the JSON of a CRD of apiextensions.k8s.io/v1, which must not change afterwards.
func Read(js []byte) (CRD, error) {
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := kjson.UnmarshalCaseSensitivePreserveInts(js, &v1); err != nil {
		return CRD{}, fmt.Errorf("read a CRD: %w", err)
	}
	out := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, out, nil); err != nil {
		return CRD{}, fmt.Errorf("read a CRD: %w", err)
	}
	return CRD{CustomResourceDefinition: out, json: js}, nil
}

// schemaJSON is the JSON of the schemas of a CRD, nil where there is none.
type schemaJSON struct {
	top      []byte // of what is said once for all versions
	versions [][]byte
}

func (c CRD) schemas() (all schemaJSON) {
	if c.read != nil {
		return *c.read
	}
	read := object.NewCursor(c.json)
	raw := func(into *[]byte) {
		read.Members(func(key string) {
			if key == "openAPIV3Schema" && read.Kind() == '{' {
				*into = []byte(read.Raw())
			}
		})
	}
	below := func(want string, next func()) func(string) {
		return func(key string) {
			if key == want {
				next()
			}
		}
	}
	read.Members(below("spec", func() {
		read.Members(func(key string) {
			switch key {
			case "validation":
				raw(&all.top)
			case "versions":
				read.Elements(func(i int) {
					all.versions = append(all.versions, nil)
					read.Members(below("schema", func() { raw(&all.versions[i]) }))
				})
			}
		})
	}))
	if !c.legacy && len(all.versions) > 0 {
		all.top = all.versions[0]
	}
	return all
}

// all is for what does not matter where it lies.
func (s schemaJSON) all() [][]byte { return append(slices.Clone(s.versions), s.top) }

// Create checks a new CRD. Its metadata is checked elsewhere but for the name's relation to the
// spec; status.acceptedNames, which the server makes of the spec's names, are not. The CRD is not modified.
func Create(crd CRD) field.ErrorList {
	schemas := crd.schemas()
	o := options{schemas: schemas, checker: ourschema.NewRuleChecker(schemas.all(), expressions{}.has), prunedDefaults: true, recognizedReview: true, requireSchemas: true, propertyTypes: true, structural: true, atomicSets: true, listMapKeys: true, contradictions: true}
	errs := name(crd.CustomResourceDefinition)
	errs = append(errs, spec(&crd.Spec, o.asked(crd))...)
	errs = append(errs, storedVersions(crd.CustomResourceDefinition)...)
	if crd.legacy {
		return errs
	}
	errs = append(errs, approval(crd.CustomResourceDefinition, nil)...)
	return append(errs, preserveUnknownFields(crd.CustomResourceDefinition, nil)...)
}

// Update checks a CRD that is to replace old. Neither is modified.
func Update(crd, old CRD) field.ErrorList {
	errs := spec(&crd.Spec, ratchet(crd, old).asked(crd))
	errs = append(errs, immutable(crd.CustomResourceDefinition, old.CustomResourceDefinition)...)
	errs = append(errs, storedVersions(crd.CustomResourceDefinition)...)
	if crd.legacy {
		return errs
	}
	errs = append(errs, approval(crd.CustomResourceDefinition, old.CustomResourceDefinition)...)
	return append(errs, preserveUnknownFields(crd.CustomResourceDefinition, old.CustomResourceDefinition)...)
}

// Status checks what a write of /status makes of old.
func Status(crd, old CRD) field.ErrorList {
	errs := acceptedNames(crd)
	if !slices.Equal(crd.Status.StoredVersions, old.Status.StoredVersions) {
		errs = append(errs, storedVersions(crd.CustomResourceDefinition)...)
	}
	return errs
}

func acceptedNames(crd CRD) field.ErrorList {
	return names(&crd.Status.AcceptedNames, field.NewPath("status", "acceptedNames"))
}

func name(crd *apiextensions.CustomResourceDefinition) (errs field.ErrorList) {
	const message = `must be spec.names.plural+"."+spec.group`
	want := crd.Spec.Names.Plural + "." + crd.Spec.Group
	if p := crd.GenerateName; p != "" && p != want {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "generateName"), p, message))
	}
	if n := crd.Name; n != "" && n != want {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), n, message))
	}
	return errs
}

func immutable(crd, old *apiextensions.CustomResourceDefinition) (errs field.ErrorList) {
	s, was, path := &crd.Spec, &old.Spec, field.NewPath("spec")
	if isEstablished(old) { // these decide where and as what objects are stored
		errs = append(errs, apivalidation.ValidateImmutableField(s.Scope, was.Scope, path.Child("scope"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(s.Names.Kind, was.Names.Kind, path.Child("names", "kind"))...)
	}
	errs = append(errs, apivalidation.ValidateImmutableField(s.Group, was.Group, path.Child("group"))...)
	return append(errs, apivalidation.ValidateImmutableField(s.Names.Plural, was.Names.Plural, path.Child("names", "plural"))...)
}

func isEstablished(crd *apiextensions.CustomResourceDefinition) bool {
	return slices.ContainsFunc(crd.Status.Conditions, func(c apiextensions.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensions.Established && c.Status == apiextensions.ConditionTrue
	})
}

func storedVersions(crd *apiextensions.CustomResourceDefinition) (errs field.ErrorList) {
	path, stored := field.NewPath("status", "storedVersions"), crd.Status.StoredVersions
	if len(stored) == 0 {
		return field.ErrorList{field.Invalid(path, stored, "must have at least one stored version")}
	}
	left := map[string]int{}
	for i, v := range stored {
		left[v] = i
	}
	for _, v := range crd.Spec.Versions {
		if _, ok := left[v.Name]; v.Storage && !ok {
			errs = append(errs, field.Invalid(path, stored, "must have the storage version "+v.Name))
		}
		delete(left, v.Name)
	}
	for i, v := range stored {
		if at, ok := left[v]; ok && at == i {
			errs = append(errs, field.Invalid(path.Index(i), v, fmt.Sprintf("missing from spec.versions; %[1]s was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in %[1]s and removes %[1]s from status.storedVersions", v)))
		}
	}
	return errs
}

func preserveUnknownFields(crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
	if old != nil && keepsUnknown(&old.Spec) || !keepsUnknown(&crd.Spec) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", "preserveUnknownFields"), crd.Spec.PreserveUnknownFields, "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead")}
}

func keepsUnknown(s *apiextensions.CustomResourceDefinitionSpec) bool {
	return s.PreserveUnknownFields != nil && *s.PreserveUnknownFields
}

// keepsSchema reports whether version is one of s and its schema stays what it was.
func (o options) keepsSchema(s *apiextensions.CustomResourceDefinitionSpec, version string) bool {
	return o.unchanged != nil && o.unchanged(version) &&
		slices.ContainsFunc(s.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool { return v.Name == version })
}

// ratchet finds out what old has been allowed.
func ratchet(crd, old CRD) options {
	all, schemas := schemasOf(&old.Spec), crd.schemas()
	has := func(f func(*schema) bool) bool {
		return slices.ContainsFunc(all, func(s *schema) bool { return anywhere(s, f) })
	}
	return options{
		recognizedReview: old.Spec.Conversion == nil || len(old.Spec.Conversion.ConversionReviewVersions) == 0 ||
			slices.ContainsFunc(old.Spec.Conversion.ConversionReviewVersions, isReviewVersion),
		requireSchemas: !lacksSchema(&old.Spec),
		propertyTypes:  !has(func(s *schema) bool { return s.Type != "" && !slices.Contains(propertyTypes, s.Type) }),
		structural:     !slices.ContainsFunc(all, isNonStructural),
		atomicSets:     !has(func(s *schema) bool { return len(atomicSetItems(s, nil)) > 0 }),
		contradictions: !has(isContradictory),
		listMapKeys:    !has(func(s *schema) bool { return len(listMapKeys(s, field.NewPath(""))) > 0 }),
		caBundle:       isEstablished(old.CustomResourceDefinition) && hasValidCABundle(old.Spec.Conversion),
		manySelectable: manySelectable(crd.CustomResourceDefinition, old.CustomResourceDefinition),
		prunedDefaults: !old.hasUnprunedDefaults(),
		unchanged:      func(version string) bool { return hasSameSchema(crd, old, version) },
		schemas:        schemas,
		checker:        ourschema.NewRuleChecker(schemas.all(), expressionsIn(&old.Spec).has),
	}
}

// hasUnprunedDefaults looks at all structural schemas of c that have defaults.
func (c CRD) hasUnprunedDefaults() bool {
	versions := c.Spec.Versions
	for i, js := range c.schemas().versions {
		v := c.Spec.Validation
		if v == nil && i < len(versions) {
			v = versions[i].Schema
		}
		if v == nil || v.OpenAPIV3Schema == nil || !anywhere(v.OpenAPIV3Schema, hasDefault) || isNonStructural(v.OpenAPIV3Schema) {
			continue
		}
		if s, err := ourschema.Compile(js, false); err == nil && s.HasUnprunedDefaults() {
			return true
		}
	}
	return false
}

func hasDefault(s *schema) bool { return s.Default != nil }

// hasSameSchema reports whether a version, which old must have too, has the schema that it had.
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
		if len(was) > MaxSelectableFields && apiequality.Semantic.DeepEqual(fields, was) {
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

// spec checks spec by itself.
func spec(s *apiextensions.CustomResourceDefinitionSpec, o options) field.ErrorList {
	path := field.NewPath("spec")
	errs := group(s.Group, path.Child("group"))
	errs = append(errs, oneOf(path.Child("scope"), string(s.Scope), string(apiextensions.ClusterScoped), string(apiextensions.NamespaceScoped))...)
	prunes := !keepsUnknown(s)
	o.structural = o.structural || prunes
	errs = append(errs, missingSchemas(s, o, path)...)
	all := schemasOf(s)
	lax := s.PreserveUnknownFields == nil || !prunes
	if (lax || !o.structural) && slices.ContainsFunc(all, func(x *schema) bool { return anywhere(x, hasDefault) }) {
		o.structural = true
		if lax {
			errs = append(errs, field.Invalid(path.Child("preserveUnknownFields"), true, "must be false in order to use defaults in the schema"))
		}
	}
	o.structural = o.structural || slices.ContainsFunc(all, func(x *schema) bool { return anywhere(x, isExtended) })
	errs = append(errs, versions(s, o, path)...)
	errs = append(errs, requiredNames(s, path.Child("names"))...)
	errs = append(errs, names(&s.Names, path.Child("names"))...)
	if s.Validation != nil {
		o.costly = func() bool { return o.keepsSchema(s, s.Version) }
		errs = append(errs, validationSchema(s.Validation, o.schemas.top, hasStatus(s), o, path.Child("validation"))...)
	}
	errs = append(errs, subresources(s.Subresources, path.Child("subresources"))...)
	for i := range s.AdditionalPrinterColumns {
		errs = append(errs, column(&s.AdditionalPrinterColumns[i], path.Child("additionalPrinterColumns").Index(i))...)
	}
	if len(s.SelectableFields) > 0 && s.Validation == nil {
		errs = append(errs, field.Invalid(path.Child("selectableFields"), "", "may only be set when validations.schema is included"))
	} else if len(s.SelectableFields) > 0 {
		errs = append(errs, selectableFields(s.SelectableFields, s.Validation.OpenAPIV3Schema, path, o, "")...)
	}
	if c := s.Conversion; c != nil && c.Strategy != apiextensions.NoneConverter && (s.PreserveUnknownFields == nil || !prunes) {
		errs = append(errs, field.Invalid(path.Child("conversion", "strategy"), c.Strategy, "must be None if spec.preserveUnknownFields is true"))
	}
	return append(errs, conversion(s.Conversion, o, path.Child("conversion"))...)
}

func group(g string, path *field.Path) field.ErrorList {
	if g == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if msgs := validation.IsDNS1123Subdomain(g); len(msgs) > 0 {
		return field.ErrorList{field.Invalid(path, g, strings.Join(msgs, ","))}
	}
	if !strings.Contains(g, ".") {
		return field.ErrorList{field.Invalid(path, g, "should be a domain with at least one dot")}
	}
	return nil
}

func oneOf(path *field.Path, value string, accepted ...string) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "")}
	case slices.Contains(accepted, value):
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, accepted)}
}

func lacksSchema(s *apiextensions.CustomResourceDefinitionSpec) bool {
	if s.Validation != nil && s.Validation.OpenAPIV3Schema != nil {
		return false
	}
	return slices.ContainsFunc(s.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool { return hasNoSchema(&v) })
}

func hasNoSchema(v *apiextensions.CustomResourceDefinitionVersion) bool {
	return v.Schema == nil || v.Schema.OpenAPIV3Schema == nil
}

func missingSchemas(s *apiextensions.CustomResourceDefinitionSpec, o options, path *field.Path) (errs field.ErrorList) {
	if s.Validation != nil && s.Validation.OpenAPIV3Schema != nil {
		return nil
	}
	for i := range s.Versions {
		at := path.Child("versions").Index(i).Child("schema", "openAPIV3Schema")
		switch {
		case !hasNoSchema(&s.Versions[i]):
		case o.requireSchemas:
			errs = append(errs, field.Required(at, ""))
		case !keepsUnknown(s) && s.Versions[i].Served:
			errs = append(errs, field.Required(at, "because otherwise all fields are pruned"))
		}
	}
	return errs
}

func versions(s *apiextensions.CustomResourceDefinitionSpec, o options, path *field.Path) (errs field.ErrorList) {
	all, stored, unique, seen := path.Child("versions"), 0, true, map[string]bool{}
	for i := range s.Versions {
		v := &s.Versions[i]
		if v.Storage {
			stored++
		}
		unique = unique && !seen[v.Name]
		seen[v.Name] = true
		if msgs := validation.IsDNS1035Label(v.Name); len(msgs) > 0 {
			errs = append(errs, field.Invalid(all.Index(i).Child("name"), v.Name, strings.Join(msgs, ",")))
		}
		o.costly = func() bool { return o.keepsSchema(s, v.Name) }
		errs = append(errs, version(s, v, o.schemas.versions[i], o, all.Index(i))...)
	}
	errs = append(errs, twice(s, path)...)
	if !unique {
		errs = append(errs, field.Invalid(all, s.Versions, "must contain unique version names"))
	}
	if stored != 1 {
		errs = append(errs, field.Invalid(all, s.Versions, "must have exactly one version marked as storage version"))
	}
	if msgs := validation.IsDNS1035Label(s.Version); s.Version != "" && len(msgs) > 0 {
		errs = append(errs, field.Invalid(path.Child("version"), s.Version, strings.Join(msgs, ",")))
	}
	if s.Version != "" && len(s.Versions) > 0 && s.Versions[0].Name != s.Version {
		errs = append(errs, field.Invalid(path.Child("version"), s.Version, "must match the first version in spec.versions"))
	}
	return errs
}

func version(s *apiextensions.CustomResourceDefinitionSpec, v *apiextensions.CustomResourceDefinitionVersion, js []byte, o options, path *field.Path) (errs field.ErrorList) {
	for _, msg := range deprecation(v.Deprecated, v.DeprecationWarning) {
		errs = append(errs, field.Invalid(path.Child("deprecationWarning"), v.DeprecationWarning, msg))
	}
	if v.Schema != nil {
		status := s.Subresources
		if slices.ContainsFunc(s.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool { return v.Subresources != nil }) {
			first := slices.IndexFunc(s.Versions, func(of apiextensions.CustomResourceDefinitionVersion) bool { return of.Name == v.Name })
			status = s.Versions[first].Subresources // looked up by name, even where there are two of it
		}
		errs = append(errs, validationSchema(v.Schema, js, status != nil && status.Status != nil, o, path.Child("schema"))...)
	}
	errs = append(errs, subresources(v.Subresources, path.Child("subresources"))...)
	for i := range v.AdditionalPrinterColumns {
		errs = append(errs, column(&v.AdditionalPrinterColumns[i], path.Child("additionalPrinterColumns").Index(i))...)
	}
	if len(v.SelectableFields) > 0 && hasNoSchema(v) {
		errs = append(errs, field.Invalid(path.Child("selectableFields"), "", "may only be set when `version.schema.openAPIV3Schema` is not included"))
	} else if len(v.SelectableFields) > 0 {
		errs = append(errs, selectableFields(v.SelectableFields, v.Schema.OpenAPIV3Schema, path, o, v.Name)...)
	}
	return errs
}

func deprecation(deprecated bool, warning *string) (msgs []string) {
	switch {
	case !deprecated && warning != nil:
		return []string{"can only be set for deprecated versions"}
	case warning == nil:
		return nil
	}
	if len(*warning) > 256 {
		msgs = append(msgs, "must be <= 256 characters long")
	}
	if *warning == "" {
		msgs = append(msgs, "must not be an empty string")
	}
	if i := strings.IndexFunc(*warning, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		msgs = append(msgs, fmt.Sprintf("must only contain printable UTF-8 characters; non-printable character found at index %d", i))
	}
	if !utf8.ValidString(*warning) {
		msgs = append(msgs, "must only contain printable UTF-8 characters")
	}
	return msgs
}
