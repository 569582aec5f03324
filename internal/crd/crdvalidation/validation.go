// Package crdvalidation validates CustomResourceDefinitions and returns upstream's errors. It must not import
// storage or the serving of kinds.
//
// Upstream's own validation checks everything in a CRD except its schemas (validation.go). This package checks the
// schemas, in less time and memory than upstream. It compiles them with the package internal/crd, which also
// validates objects.
//
// The checks use upstream's internal form of a CRD, because its paths appear in errors for clients. In the
// internal form, fields that are equal in all versions are at the top of spec ("spec.validation.openAPIV3Schema").
package crdvalidation

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/transport"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// Create validates a new CRD. The caller validates metadata, except for the name, which depends on the spec.
// status.acceptedNames are not validated, because the server derives them from the names in the spec. The CRD is
// not modified.
func Create(c CRD) field.ErrorList {
	now, checks := withPlaceholders(c), strictOptions(c).checks(c)
	errs := validation.ValidateCustomResourceDefinition(context.Background(), now)
	if c.legacy {
		errs = slices.DeleteFunc(errs, func(e *field.Error) bool { return !isOfName(e) })
		old := &apiextensions.CustomResourceDefinition{Spec: apiextensions.CustomResourceDefinitionSpec{
			Group: c.Spec.Group, Names: c.Spec.Names,
		}}
		errs = append(errs, validation.ValidateCustomResourceDefinitionUpdate(context.Background(), now,
			withLegacyLeniency(old, now))...)
	}
	return replacePlaceholders(errs, c, checks)
}

// Update validates c, which replaces the CRD old. It modifies neither of the two.
func Update(c, old CRD) field.ErrorList {
	now, was := withPlaceholders(c), withPlaceholders(old)
	if c.legacy {
		was = withLegacyLeniency(was, now)
	}
	return replacePlaceholders(validation.ValidateCustomResourceDefinitionUpdate(context.Background(), now, was), c,
		ratchetedOptions(c, old).checks(c))
}

// Status validates the CRD c that replaces old in a write of the status subresource.
func Status(c, old CRD) field.ErrorList {
	path := field.NewPath("status")
	errs := validation.ValidateCustomResourceDefinitionStatus(&c.Status, path)
	if !slices.Equal(c.Status.StoredVersions, old.Status.StoredVersions) {
		errs = append(errs, validation.ValidateCustomResourceDefinitionStoredVersions(c.Status.StoredVersions,
			c.Spec.Versions, path.Child("storedVersions"))...)
	}
	return errs
}

// withPlaceholders returns the form of c that upstream's code validates. It has a placeholder in place of each
// schema and each list of selectable fields. Upstream's code reports an error for each placeholder.
func withPlaceholders(c CRD) *apiextensions.CustomResourceDefinition {
	out := &apiextensions.CustomResourceDefinition{Spec: c.Spec, Status: c.Status}
	out.Name, out.GenerateName, out.ResourceVersion = c.Name, c.GenerateName, "1"
	const approved = apiextensionsv1.KubeAPIApprovedAnnotation
	if value, ok := c.Annotations[approved]; ok {
		out.Annotations = map[string]string{approved: value}
	}
	out.Status.AcceptedNames = apiextensions.CustomResourceDefinitionNames{}
	spec := &out.Spec
	mayDefault := spec.PreserveUnknownFields != nil && !*spec.PreserveUnknownFields
	spec.Validation, spec.SelectableFields = c.placeholderSchema(spec.Validation, "", mayDefault),
		placeholderFields(spec.SelectableFields)
	spec.Versions = slices.Clone(spec.Versions)
	for i := range spec.Versions {
		v, which := &spec.Versions[i], ""
		if !c.isSame(v.Schema, c.Spec.Versions[0].Schema) {
			which = "another"
		}
		v.Schema, v.SelectableFields = c.placeholderSchema(v.Schema, which, mayDefault),
			placeholderFields(v.SelectableFields)
	}
	return out
}

// placeholderSchema returns an invalid schema as the placeholder for the one in the field at. Placeholders for
// different schemas have different descriptions. If the schema has a default that is not allowed, the placeholder has
// a default too.
func (c CRD) placeholderSchema(at *schemaField, description string, mayDefault bool) *schemaField {
	root := c.Root(at)
	if root == nil {
		return at
	}
	mark := &apiextensions.JSONSchemaProps{Type: "object", UniqueItems: true, Description: description}
	if !mayDefault && root.Any(hasDefault) {
		value := apiextensions.JSON("value")
		mark.Properties = map[string]apiextensions.JSONSchemaProps{"defaulted": {Type: "string", Default: &value}}
	}
	return &schemaField{OpenAPIV3Schema: mark}
}

func hasDefault(n *schema.Node) bool { return n.Default != "" }

func placeholderFields(fields []apiextensions.SelectableField) []apiextensions.SelectableField {
	return make([]apiextensions.SelectableField, min(len(fields), 1))
}

// checks returns the checks of all schemas and selectable fields. The key of a check is the error path of its
// placeholder.
func (o options) checks(c CRD) map[string]func() field.ErrorList {
	o = o.forAPIVersion(c)
	s, path, checks := &c.Spec, field.NewPath("spec"), map[string]func() field.ErrorList{}
	o.structural = o.structural || !preservesUnknownFields(s) ||
		c.any(func(n *schema.Node) bool { return hasDefault(n) || requiresStructural(n) })
	schemaAt := func(path *field.Path, at *schemaField, status bool, version string) {
		compiled := c.schemas[at]
		if compiled == nil {
			return
		}
		o := o
		o.costly = func() bool { return o.hasUnchangedSchema(s, version) }
		checks[path.Child("openAPIV3Schema", "uniqueItems").String()] = func() field.ErrorList {
			return validateSchema(compiled, status, o, path)
		}
	}
	fieldsAt := func(path *field.Path, fields []apiextensions.SelectableField, at *schemaField, version string) {
		checks[path.Child("selectableFields").Index(0).Child("jsonPath").String()] = func() field.ErrorList {
			return selectableFields(fields, c.Root(at), path, o, version)
		}
	}
	anyStatus := hasStatus(s.Subresources)
	for i := range s.Versions {
		v, at := &s.Versions[i], path.Child("versions").Index(i)
		anyStatus = anyStatus || hasStatus(v.Subresources)
		schemaAt(at.Child("schema"), v.Schema, hasStatus(subresourcesOf(s, v.Name)), v.Name)
		fieldsAt(at, v.SelectableFields, v.Schema, v.Name)
	}
	schemaAt(path.Child("validation"), s.Validation, anyStatus, s.Version)
	fieldsAt(path, s.SelectableFields, s.Validation, "")
	return checks
}

func hasStatus(s *apiextensions.CustomResourceSubresources) bool { return s != nil && s.Status != nil }

// subresourcesOf returns the subresources of the first version with the given name. If no version has subresources,
// it returns those that all versions share.
func subresourcesOf(s *apiextensions.CustomResourceDefinitionSpec,
	version string) *apiextensions.CustomResourceSubresources {
	own := func(v apiextensions.CustomResourceDefinitionVersion) bool { return v.Subresources != nil }
	if !slices.ContainsFunc(s.Versions, own) {
		return s.Subresources
	}
	named := func(v apiextensions.CustomResourceDefinitionVersion) bool { return v.Name == version }
	return s.Versions[slices.IndexFunc(s.Versions, named)].Subresources
}

// replacePlaceholders replaces the errors about placeholders by the errors in the schemas and selectable fields. It
// drops errors in metadata, because the caller validates metadata.
func replacePlaceholders(errs field.ErrorList, c CRD,
	checks map[string]func() field.ErrorList) (out field.ErrorList) {
	for _, e := range errs {
		if _, ok := e.BadValue.([]apiextensions.CustomResourceDefinitionVersion); ok {
			e.BadValue = c.Upstream().Spec.Versions
		}
		check := checks[e.Field]
		switch {
		case check != nil:
			out = append(out, check()...)
		case !strings.HasPrefix(e.Field, "metadata.") || strings.HasPrefix(e.Field, "metadata.annotations[") ||
			isOfName(e):
			out = append(out, e)
		}
	}
	return out
}

func isOfName(e *field.Error) bool { return strings.HasPrefix(e.Detail, "must be spec.names.plural") }

func preservesUnknownFields(s *apiextensions.CustomResourceDefinitionSpec) bool {
	return s.PreserveUnknownFields != nil && *s.PreserveUnknownFields
}

// CheckCABundle returns an error if the PEM CA certificates of a webhook are invalid.
func CheckCABundle(pem []byte) error {
	_, err := transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{CAData: pem}})
	return err
}
