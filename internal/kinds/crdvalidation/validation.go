// Package crdvalidation decides which CustomResourceDefinitions are accepted and says why
// others are not, in upstream's words. It knows neither storage nor how kinds are served.
//
// Upstream's own validation checks all of a CRD but its schemas (validation.go). Those are checked here, in less time and
// memory, and as the schemas that objects are checked by (internal/schema).
//
// The checks work on the internal form that upstream's do, because clients see its paths:
// what all versions have in common is at the top of spec ("spec.validation.openAPIV3Schema").
package crdvalidation

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/transport"
)

// Create checks a new CRD. Its metadata is checked elsewhere but for the name's relation to the
// spec; status.acceptedNames, which the server makes of the spec's names, are not. The CRD is not modified.
func Create(crd CRD) field.ErrorList {
	now, checks := marked(crd), strict(crd).checks(crd)
	errs := validation.ValidateCustomResourceDefinition(context.Background(), now)
	if crd.legacy {
		errs = slices.DeleteFunc(errs, func(e *field.Error) bool { return !isOfName(e) })
		old := &apiextensions.CustomResourceDefinition{Spec: apiextensions.CustomResourceDefinitionSpec{Group: crd.Spec.Group, Names: crd.Spec.Names}}
		errs = append(errs, validation.ValidateCustomResourceDefinitionUpdate(context.Background(), now, asLegacy(old, now))...)
	}
	return unmark(errs, crd, checks)
}

// Update checks a CRD that is to replace old. Neither is modified.
func Update(crd, old CRD) field.ErrorList {
	now, was := marked(crd), marked(old)
	if crd.legacy {
		was = asLegacy(was, now)
	}
	return unmark(validation.ValidateCustomResourceDefinitionUpdate(context.Background(), now, was), crd, ratchet(crd, old).checks(crd))
}

// Status checks what a write of /status makes of old.
func Status(crd, old CRD) field.ErrorList {
	path := field.NewPath("status")
	errs := validation.ValidateCustomResourceDefinitionStatus(&crd.Status, path)
	if !slices.Equal(crd.Status.StoredVersions, old.Status.StoredVersions) {
		errs = append(errs, validation.ValidateCustomResourceDefinitionStoredVersions(crd.Status.StoredVersions, crd.Spec.Versions, path.Child("storedVersions"))...)
	}
	return errs
}

// marked is what upstream gets to check: crd with a mark, which is an error, in place of each schema and of all fields
// that are selectable by it.
func marked(crd CRD) *apiextensions.CustomResourceDefinition {
	out := &apiextensions.CustomResourceDefinition{Spec: crd.Spec, Status: crd.Status}
	out.Name, out.GenerateName, out.ResourceVersion = crd.Name, crd.GenerateName, "1"
	const approved = apiextensionsv1.KubeAPIApprovedAnnotation
	if value, ok := crd.Annotations[approved]; ok {
		out.Annotations = map[string]string{approved: value}
	}
	out.Status.AcceptedNames = apiextensions.CustomResourceDefinitionNames{}
	spec := &out.Spec
	mayDefault := spec.PreserveUnknownFields != nil && !*spec.PreserveUnknownFields
	spec.Validation, spec.SelectableFields = markedSchema(spec.Validation, "", mayDefault), markedFields(spec.SelectableFields)
	spec.Versions = slices.Clone(spec.Versions)
	for i := range spec.Versions {
		v, which := &spec.Versions[i], ""
		if !apiequality.Semantic.DeepEqual(v.Schema, crd.Spec.Versions[0].Schema) {
			which = "another"
		}
		v.Schema, v.SelectableFields = markedSchema(v.Schema, which, mayDefault), markedFields(v.SelectableFields)
	}
	return out
}

// markedSchema is a mark, which differs from other marks by its description. It has a default if the schema has one that it
// may not have.
func markedSchema(v *apiextensions.CustomResourceValidation, description string, mayDefault bool) *apiextensions.CustomResourceValidation {
	if v == nil || v.OpenAPIV3Schema == nil {
		return v
	}
	mark := &schema{Type: "object", UniqueItems: true, Description: description}
	if !mayDefault && anywhere(v.OpenAPIV3Schema, hasDefault) {
		value := apiextensions.JSON("value")
		mark.Properties = map[string]schema{"defaulted": {Type: "string", Default: &value}}
	}
	return &apiextensions.CustomResourceValidation{OpenAPIV3Schema: mark}
}

func markedFields(fields []apiextensions.SelectableField) []apiextensions.SelectableField {
	return make([]apiextensions.SelectableField, min(len(fields), 1))
}

// checks are those of all that is marked, by the fields of the errors that the marks are.
func (o options) checks(crd CRD) map[string]func() field.ErrorList {
	o = o.asked(crd)
	s, path, checks := &crd.Spec, field.NewPath("spec"), map[string]func() field.ErrorList{}
	needsStructure := func(x *schema) bool { return hasDefault(x) || isExtended(x) }
	o.structural = o.structural || !keepsUnknown(s) ||
		slices.ContainsFunc(schemasOf(s), func(x *schema) bool { return anywhere(x, needsStructure) })
	schemaAt := func(at *field.Path, v *apiextensions.CustomResourceValidation, js []byte, status bool, version string) {
		o := o
		o.costly = func() bool { return o.keepsSchema(s, version) }
		checks[at.Child("openAPIV3Schema", "uniqueItems").String()] = func() field.ErrorList { return validationSchema(v, js, status, o, at) }
	}
	fieldsAt := func(at *field.Path, fields []apiextensions.SelectableField, v *apiextensions.CustomResourceValidation, version string) {
		checks[at.Child("selectableFields").Index(0).Child("jsonPath").String()] = func() field.ErrorList {
			return selectableFields(fields, v.OpenAPIV3Schema, at, o, version)
		}
	}
	anyStatus := hasStatus(s.Subresources)
	for i := range s.Versions {
		v, at := &s.Versions[i], path.Child("versions").Index(i)
		anyStatus = anyStatus || hasStatus(v.Subresources)
		schemaAt(at.Child("schema"), v.Schema, o.schemas.versions[i], hasStatus(subresourcesOf(s, v.Name)), v.Name)
		fieldsAt(at, v.SelectableFields, v.Schema, v.Name)
	}
	schemaAt(path.Child("validation"), s.Validation, o.schemas.top, anyStatus, s.Version)
	fieldsAt(path, s.SelectableFields, s.Validation, "")
	return checks
}

func hasStatus(s *apiextensions.CustomResourceSubresources) bool { return s != nil && s.Status != nil }

// subresourcesOf are those of the first version of that name, or of all versions.
func subresourcesOf(s *apiextensions.CustomResourceDefinitionSpec, version string) *apiextensions.CustomResourceSubresources {
	own := func(v apiextensions.CustomResourceDefinitionVersion) bool { return v.Subresources != nil }
	if !slices.ContainsFunc(s.Versions, own) {
		return s.Subresources
	}
	named := func(v apiextensions.CustomResourceDefinitionVersion) bool { return v.Name == version }
	return s.Versions[slices.IndexFunc(s.Versions, named)].Subresources
}

// unmark puts in place of each mark what is wrong with what was marked, and leaves out what is not said here.
func unmark(errs field.ErrorList, crd CRD, checks map[string]func() field.ErrorList) (out field.ErrorList) {
	for _, e := range errs {
		if _, ok := e.BadValue.([]apiextensions.CustomResourceDefinitionVersion); ok {
			e.BadValue = crd.Spec.Versions
		}
		check := checks[e.Field]
		switch {
		case check != nil:
			out = append(out, check()...)
		case !strings.HasPrefix(e.Field, "metadata.") || strings.HasPrefix(e.Field, "metadata.annotations[") || isOfName(e):
			out = append(out, e)
		}
	}
	return out
}

func isOfName(e *field.Error) bool { return strings.HasPrefix(e.Detail, "must be spec.names.plural") }

func keepsUnknown(s *apiextensions.CustomResourceDefinitionSpec) bool {
	return s.PreserveUnknownFields != nil && *s.PreserveUnknownFields
}

// CheckCABundle returns what is wrong with the CA certificates of a webhook, in PEM.
func CheckCABundle(pem []byte) error {
	_, err := transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{CAData: pem}})
	return err
}
