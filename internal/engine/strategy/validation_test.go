package strategy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// fakeDeclarative is a strategy whose declarative validation returns the same errors for every object.
type fakeDeclarative struct {
	rest.DeclarativeValidation
	errors   field.ErrorList
	compared int // how many errors have been compared
}

// ValidateDeclaratively merges the errors of the hand-written and the declarative validation with upstream's
// function.
func (d *fakeDeclarative) ValidateDeclaratively(ctx context.Context, _, _ runtime.Object, found field.ErrorList,
	_ operation.Type, config rest.DeclarativeValidationConfig) field.ErrorList {
	d.compared += len(found)
	return append(validate.FilterCoveredHandwrittenErrors(ctx, found, d.errors, true, config.NormalizationRules...),
		d.errors...)
}

// randomErrors returns errors for a few fields, so that many errors match.
func randomErrors(r *rand.Rand) (out field.ErrorList) {
	for range r.IntN(12) {
		path := field.NewPath("spec").Child([]string{"a", "b", "old"}[r.IntN(3)])
		e := field.Invalid(path, r.IntN(2), "d")
		if r.IntN(2) == 0 {
			e = field.Required(path, "d")
		}
		e.Origin = []string{"", "format=x", "minimum"}[r.IntN(3)]
		e.CoveredByDeclarative = r.IntN(2) == 0
		if r.IntN(2) == 0 {
			e = e.MarkBeta()
		}
		out = append(out, e)
	}
	return out
}

// TestErrorsAreMergedAsUpstream checks that the merged errors of the hand-written and the declarative validation
// are the same as in upstream. The number of comparisons must not be quadratic.
func TestErrorsAreMergedAsUpstream(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	rule := field.NormalizationRule{Regexp: regexp.MustCompile(`^spec\.old$`), Replacement: "spec.a"}
	config := rest.DeclarativeValidationConfig{NormalizationRules: []field.NormalizationRule{rule}}
	for range 3000 {
		d, found := &fakeDeclarative{errors: randomErrors(r)}, randomErrors(r)
		want := d.ValidateDeclaratively(t.Context(), nil, nil, found, operation.Create, config)
		d.compared = 0
		got := declarative{d}.ValidateDeclaratively(t.Context(), nil, nil, found, operation.Create, config)
		if fmt.Sprint(got) != fmt.Sprint(want) || d.compared != 0 {
			t.Errorf("got %v after %d comparisons, want %v", got, d.compared, want)
		}
		if len(got) > 0 {
			gk := schema.GroupKind{Group: "g", Kind: "K"}
			status := NewInvalid(gk, "n", got).(*apierrors.StatusError).ErrStatus
			if want := apierrors.NewInvalid(gk, "n", got); fmt.Sprint(status) != fmt.Sprint(want.ErrStatus) {
				t.Errorf("got %v, want %v", status, want.ErrStatus)
			}
		}
	}
}

// TestErrorTextIsLimited checks that the text of a 422 is limited, even if only a few errors quote large values.
func TestErrorTextIsLimited(t *testing.T) {
	var found field.ErrorList
	for i := range 16 * maxProblems {
		found = append(found, field.Invalid(field.NewPath("spec").Index(i), strings.Repeat("x", 1000), ""))
	}
	found = declarative{&fakeDeclarative{}}.ValidateDeclaratively(t.Context(), nil, nil, found, operation.Create,
		rest.DeclarativeValidationConfig{})
	s := NewInvalid(schema.GroupKind{}, "", found).(*apierrors.StatusError).ErrStatus
	if n := len(s.Details.Causes); n > maxProblems || len(s.Message) < maxProblemText/2 ||
		len(s.Message) > 2*maxProblemText {
		t.Errorf("got %d causes and %d bytes", n, len(s.Message))
	}
}
