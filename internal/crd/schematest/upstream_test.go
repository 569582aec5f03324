package schematest

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/trellis-k8s/trellis/internal/object"
)

// upstream is one version of a kind as upstream's server handles it.
type upstream struct {
	structural    *structuralschema.Structural // nil if there is no structural schema
	preserve      bool                         // spec.preserveUnknownFields
	nonStructural bool                         // there is a schema, but it is not structural
	validator     validation.SchemaValidator
	status        validation.SchemaValidator // nil if the schema has no status
	rules         *cel.Validator
}

// newUpstream does what upstream's handler does on the first use of a version. The schema may be null.
func newUpstream(schema []byte, preserve bool) (*upstream, error) {
	u := &upstream{preserve: preserve}
	var v1 *apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal(schema, &v1); err != nil {
		return nil, err
	}
	var internal *apiextensions.JSONSchemaProps
	if v1 != nil {
		internal = &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v1, internal,
			nil); err != nil {
			return nil, err
		}
		s, err := structuralschema.NewStructural(internal)
		if err != nil && !preserve {
			return nil, err
		}
		u.structural, u.nonStructural = s, s == nil
		if !preserve {
			u.structural = s.DeepCopy()
			if err := defaulting.PruneDefaults(u.structural); err != nil {
				return nil, err
			}
		}
		if p, ok := internal.Properties["status"]; ok {
			if u.status, _, err = validation.NewSchemaValidator(&p); err != nil {
				return nil, err
			}
		}
	}
	var err error
	if u.validator, _, err = validation.NewSchemaValidator(internal); err != nil {
		return nil, err
	}
	u.rules = cel.NewValidator(u.structural, true, celconfig.PerCallLimit)
	return u, nil
}

// structuralError returns the reason why a CRD with the schema is not structural.
func (u *upstream) structuralError() error {
	return structuralschema.ValidateStructural(nil, u.structural).ToAggregate()
}

// panicsOnUpdate reports whether upstream panics on an update. This happens if the schema is not structural, because
// upstream cannot find the old values for ratcheting.
func (u *upstream) panicsOnUpdate() bool { return u.structural == nil && u.nonStructural }

// normalize normalizes the object of a request before validation: it prunes, drops nulls, coerces embedded resources
// and fills in defaults. If collect is true, it also returns the paths of unknown fields. Upstream does this for some
// values of fieldValidation.
func (u *upstream) normalize(t object.Tree, collect bool) (unknown []string, err *field.Error) {
	if !u.preserve {
		unknown = pruning.PruneWithOptions(t, u.structural, true,
			structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: collect})
		defaulting.PruneNonNullableNullsWithoutDefaults(t, u.structural)
	}
	err, more := objectmeta.CoerceWithOptions(nil, t, u.structural, false,
		objectmeta.CoerceOptions{ReturnUnknownFieldPaths: collect})
	if err != nil {
		return nil, err
	}
	defaulting.Default(t, u.structural)
	return append(unknown, more...), nil
}

// normalizeStored does the same as normalize for an object from storage.
func (u *upstream) normalizeStored(t object.Tree) {
	if !u.preserve {
		pruning.Prune(t, u.structural, true)
		defaulting.PruneNonNullableNullsWithoutDefaults(t, u.structural)
	}
	if err, _ := objectmeta.CoerceWithOptions(nil, t, u.structural, false,
		objectmeta.CoerceOptions{DropInvalidFields: true}); err != nil {
		panic(err) // invalid values are dropped without an error
	}
	defaulting.Default(t, u.structural)
}

// validate returns the schema errors of upstream's strategies for create and, with old, for update.
func (u *upstream) validate(ctx context.Context, t, old object.Tree) (errs field.ErrorList) {
	if old == nil {
		errs = append(errs, validation.ValidateCustomResource(nil, t, u.validator)...)
		errs = append(errs, objectmeta.Validate(ctx, nil, t, u.structural, false)...)
		errs = append(errs, u.listErrors(t)...)
		return u.evaluate(ctx, t, nil, nil, errs)
	}
	correlated := common.NewCorrelatedObject(t, old, &model.Structural{Structural: u.structural})
	errs = append(errs, validation.ValidateCustomResourceUpdate(nil, t, old, u.validator,
		validation.WithRatcheting(correlated))...)
	errs = append(errs, objectmeta.Validate(ctx, nil, t, u.structural, false)...)
	if len(u.listErrors(old)) == 0 {
		errs = append(errs, u.listErrors(t)...)
	}
	return u.evaluate(ctx, t, old, []cel.Option{cel.WithRatcheting(correlated)}, errs)
}

// validateStatus returns the schema errors of upstream's strategy for the status subresource.
func (u *upstream) validateStatus(ctx context.Context, t, old object.Tree) (errs field.ErrorList) {
	correlated := common.NewCorrelatedObject(t, old, &model.Structural{Structural: u.structural})
	if status, ok := t["status"]; ok {
		var options []validation.ValidationOption
		if u.structural != nil {
			options = append(options, validation.WithRatcheting(correlated.Key("status")))
		}
		errs = append(errs, validation.ValidateCustomResourceUpdate(field.NewPath("status"), status, old["status"],
			u.status, options...)...)
	}
	if len(u.listErrors(old)) == 0 {
		errs = append(errs, u.listErrors(t)...)
	}
	return u.evaluate(ctx, t, old, []cel.Option{cel.WithRatcheting(correlated)}, errs)
}

// listErrors returns the errors of list types, such as repeated items of a set.
func (u *upstream) listErrors(t object.Tree) field.ErrorList {
	return listtype.ValidateListSetsAndMaps(nil, u.structural, t)
}

// permittedListErrors returns the errors of list types in t if old has any such errors. Upstream then allows all of
// them. Trellis allows them only in unchanged lists (docs/compatibility.md, TestRepeatedItemsOfChangedLists).
func (u *upstream) permittedListErrors(t, old object.Tree) []string {
	if old == nil || u.structural == nil || len(u.listErrors(old)) == 0 {
		return nil
	}
	return slices.Sorted(slices.Values(errorTexts(u.listErrors(t))))
}

func (u *upstream) evaluate(ctx context.Context, t, old object.Tree, options []cel.Option,
	errs field.ErrorList) field.ErrorList {
	if u.rules == nil {
		return errs
	}
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany,
			field.ErrorTypeTypeInvalid:
			return append(errs, field.Invalid(nil, nil,
				"some validation rules were not checked because the object was invalid; correct the existing errors "+
					"to complete validation"))
		}
	}
	var before any // an untyped nil, as in upstream
	if old != nil {
		before = old
	}
	found, _ := u.rules.Validate(ctx, nil, u.structural, t, before, celconfig.RuntimeCELCostBudget, options...)
	return append(errs, found...)
}

// selfType matches the type name of self, which each implementation derives from the schema in a different way.
var selfType = regexp.MustCompile(`selfType\d+`)

// errorTexts returns the path, type, detail and value of each error.
func errorTexts(errs field.ErrorList) []string {
	var all []string
	for _, err := range errs {
		all = append(all, selfType.ReplaceAllString(fmt.Sprintf("%s %s %v", err.Field, err.Type, err.ErrorBody()),
			"selfType"))
	}
	return all
}
