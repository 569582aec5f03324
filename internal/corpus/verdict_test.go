package corpus_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
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
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/trellis-k8s/trellis/internal/object"
)

// upstreamShape gives a sample the form that upstream stores on a create, and what its schema finds wrong with it:
// "field: message" of each cause, sorted.
func upstreamShape(t *testing.T, version *apiextensionsv1.CustomResourceDefinitionVersion, sample file) (obj object.Tree, causes []string) {
	t.Helper()
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
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
	validator, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		t.Fatal(err)
	}
	obj, _, err = object.DecodeYAML(sample.yaml)
	if err != nil {
		t.Fatal(err)
	}
	kept := maps.Clone(obj)
	maps.DeleteFunc(kept, func(k string, _ any) bool { return k != "apiVersion" && k != "kind" && k != "metadata" })
	pruning.Prune(obj, s, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, s)
	if err := objectmeta.Coerce(nil, obj, s, false, false); err != nil {
		return nil, []string{"400 " + err.Error()}
	}
	maps.Copy(obj, kept)
	defaulting.Default(obj, s)
	if version.Subresources != nil && version.Subresources.Status != nil {
		delete(obj, "status")
	}
	errs := validation.ValidateCustomResource(nil, obj, validator)
	errs = append(errs, objectmeta.Validate(context.Background(), nil, obj, s, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s, obj)...)
	if rules := cel.NewValidator(s, true, celconfig.PerCallLimit); rules != nil {
		if slices.ContainsFunc(errs, blocksRules) {
			errs = append(errs, field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
		} else {
			broken, _ := rules.Validate(context.Background(), nil, s, obj, nil, celconfig.RuntimeCELCostBudget)
			errs = append(errs, broken...)
		}
	}
	defaulting.Default(obj, s) // as it is read back
	return obj, texts(errs)
}

// blocksRules is upstream's condition for not to evaluate rules.
func blocksRules(err *field.Error) bool {
	return slices.Contains([]field.ErrorType{field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid}, err.Type)
}

func texts(errs field.ErrorList) (out []string) {
	for _, err := range errs {
		out = append(out, err.Field+": "+err.ErrorBody())
	}
	slices.Sort(out)
	return out
}

// causesOf reads the answer to a refused create.
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

// typedCRD is the CRD in a file, with the version that s is.
func (s served) typed(t *testing.T) *apiextensionsv1.CustomResourceDefinitionVersion {
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
			return &crd.Spec.Versions[i]
		}
	}
	t.Fatalf("%s has no version %s", s.crd.path, s.version)
	return nil
}
