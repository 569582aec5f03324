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

// upstreamVersion is a version of a CRD in the forms of upstream.
type upstreamVersion struct {
	apiextensionsv1.CustomResourceDefinitionVersion
	structural *structuralschema.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator // nil if there are no rules
}

// upstreamObject returns the object that upstream stores when a sample is created, and the validation errors of its
// schema. An error has the form "field: message". The errors are sorted.
func upstreamObject(t *testing.T, version, storage *upstreamVersion, sample file) (obj object.Tree, causes []string) {
	t.Helper()
	s := version.structural
	obj, _, err := object.DecodeYAML(sample.yaml)
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
	errs := validation.ValidateCustomResource(nil, obj, version.validator)
	errs = append(errs, objectmeta.Validate(context.Background(), nil, obj, s, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s, obj)...)
	if version.rules != nil {
		if slices.ContainsFunc(errs, blocksRules) {
			errs = append(errs, field.Invalid(nil, nil,
				"some validation rules were not checked because the object was invalid; correct the existing errors "+
					"to complete validation"))
		} else {
			broken, _ := version.rules.Validate(context.Background(), nil, s, obj, nil, celconfig.RuntimeCELCostBudget)
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
func readBack(t *testing.T, obj object.Tree, version, storage *upstreamVersion) {
	t.Helper()
	for _, v := range []*upstreamVersion{storage, version} {
		if storage != version {
			if err := coerce(obj, v.structural); err != nil {
				t.Fatal(err)
			}
		}
		if v == storage {
			defaulting.Default(obj, v.structural)
		}
	}
}

// newUpstreamVersion compiles the schema of a version with upstream's packages.
func newUpstreamVersion(t *testing.T, v apiextensionsv1.CustomResourceDefinitionVersion) *upstreamVersion {
	t.Helper()
	var internal apiextensions.JSONSchemaProps
	convert := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps
	if err := convert(v.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
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
	return &upstreamVersion{v, s, validator, cel.NewValidator(s, true, celconfig.PerCallLimit)}
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

// upstreamVersions holds the result of served.upstreamVersions by the path of the CRD and the name of the version.
// Compiling takes much longer than checking one object.
var upstreamVersions = map[string]*upstreamVersion{}

// upstreamVersions returns the version of s and the storage version in the forms of upstream.
func (s served) upstreamVersions(t *testing.T) (version, storage *upstreamVersion) {
	t.Helper()
	storageName := ""
	list, _ := nested[any](s.crd.tree, "spec", "versions").([]any)
	for _, v := range list {
		if nested[bool](v, "storage") {
			storageName = nested[string](v, "name")
		}
	}
	return s.upstreamVersion(t, s.version), s.upstreamVersion(t, storageName)
}

func (s served) upstreamVersion(t *testing.T, name string) *upstreamVersion {
	t.Helper()
	key := s.crd.path + " " + name
	if v := upstreamVersions[key]; v != nil {
		return v
	}
	var crd apiextensionsv1.CustomResourceDefinition
	data, err := json.Marshal(s.crd.tree)
	if err == nil {
		err = json.Unmarshal(data, &crd)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name == name {
			upstreamVersions[key] = newUpstreamVersion(t, v)
			return upstreamVersions[key]
		}
	}
	t.Fatalf("%s: got no version %q", s.crd.path, name)
	return nil
}
