package corpus_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/trellis-k8s/trellis/internal/object"
)

// upstreamObject returns the object that upstream stores when a sample is created, and the validation errors of its
// schema. An error has the form "field: message". The errors are sorted.
func upstreamObject(t *testing.T, version, storage *apiextensionsv1.CustomResourceDefinitionVersion,
	sample file) (obj object.Tree, causes []string) {
	t.Helper()
	s, internal := structuralOf(t, version)
	validator, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		t.Fatal(err)
	}
	obj, _, err = object.DecodeYAML(sample.yaml)
	if err != nil {
		t.Fatal(err)
	}
	if err := coerce(obj, s); err != nil {
		return nil, []string{"400 " + err.Error()}
	}
	defaulting.Default(obj, s)
	if version.Subresources != nil && version.Subresources.Status != nil {
		delete(obj, "status")
	}
	errs := validation.ValidateCustomResource(nil, obj, validator)
	errs = append(errs, objectmeta.Validate(context.Background(), nil, obj, s, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s, obj)...)
	if rules := cel.NewValidator(s, true, celconfig.PerCallLimit); rules != nil {
		if slices.ContainsFunc(errs, blocksRules) {
			errs = append(errs, field.Invalid(nil, nil,
				"some validation rules were not checked because the object was invalid; correct the existing errors "+
					"to complete validation"))
		} else {
			broken, _ := rules.Validate(context.Background(), nil, s, obj, nil, celconfig.RuntimeCELCostBudget)
			errs = append(errs, broken...)
		}
	}
	if version.Subresources != nil && version.Subresources.Scale != nil {
		path := version.Subresources.Scale.SpecReplicasPath
		if _, _, err := unstructured.NestedInt64(obj, strings.Split(strings.TrimPrefix(path, "."),
			".")...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(path), int64(0), err.Error()))
		}
	}
	readBack(t, obj, version, storage)
	return obj, formatErrors(errs)
}

// readBack changes obj as upstream does when it stores and reads an object, with a conversion that changes only the
// apiVersion.
func readBack(t *testing.T, obj object.Tree, version, storage *apiextensionsv1.CustomResourceDefinitionVersion) {
	t.Helper()
	for _, v := range []*apiextensionsv1.CustomResourceDefinitionVersion{storage, version} {
		s, _ := structuralOf(t, v)
		if storage != version {
			if err := coerce(obj, s); err != nil {
				t.Fatal(err)
			}
		}
		if v == storage {
			defaulting.Default(obj, s)
		}
	}
}

// structuralOf returns the schema of a version as upstream's structural schema, and in the form for upstream's
// validator.
func structuralOf(t *testing.T, version *apiextensionsv1.CustomResourceDefinitionVersion) (*structuralschema.Structural,
	*apiextensions.JSONSchemaProps) {
	t.Helper()
	var internal apiextensions.JSONSchemaProps
	convert := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps
	if err := convert(version.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
		t.Fatal(err)
	}
	s, err := structuralschema.NewStructural(&internal)
	if err != nil {
		t.Fatal(err)
	}
	s = s.DeepCopy()
	if err := defaulting.PruneDefaults(s); err != nil {
		t.Fatal(err)
	}
	return s, &internal
}

// coerce prunes and coerces obj as upstream does after it has decoded or converted an object.
func coerce(obj object.Tree, s *structuralschema.Structural) *field.Error {
	header := maps.Clone(obj)
	maps.DeleteFunc(header, func(k string, _ any) bool { return k != "apiVersion" && k != "kind" && k != "metadata" })
	pruning.Prune(obj, s, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, s)
	if err := objectmeta.Coerce(nil, obj, s, false, false); err != nil {
		return err
	}
	maps.Copy(obj, header)
	return nil
}

// blocksRules reports whether upstream skips validation rules because of err.
func blocksRules(err *field.Error) bool {
	return slices.Contains([]field.ErrorType{field.ErrorTypeNotSupported, field.ErrorTypeRequired,
		field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid}, err.Type)
}

func formatErrors(errs field.ErrorList) (out []string) {
	for _, err := range errs {
		out = append(out, err.Field+": "+err.ErrorBody())
	}
	slices.Sort(out)
	return out
}

// causesOf returns the causes of the Status in the response to a rejected create, in the form of upstreamObject.
func causesOf(t *testing.T, body []byte) (out []string) {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	if status.Details == nil {
		return []string{status.Message}
	}
	for _, cause := range status.Details.Causes {
		out = append(out, cause.Field+": "+cause.Message)
	}
	slices.Sort(out)
	return out
}

// typedVersions returns the version of s and the storage version in their Go type.
func (s served) typedVersions(t *testing.T) (version, storage *apiextensionsv1.CustomResourceDefinitionVersion) {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	data, err := json.Marshal(s.crd.tree)
	if err == nil {
		err = json.Unmarshal(data, &crd)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range crd.Spec.Versions {
		if crd.Spec.Versions[i].Name == s.version {
			version = &crd.Spec.Versions[i]
		}
		if crd.Spec.Versions[i].Storage {
			storage = &crd.Spec.Versions[i]
		}
	}
	if version == nil || storage == nil {
		t.Fatalf("%s: got no version %s, or no storage version", s.crd.path, s.version)
	}
	return version, storage
}
