package engine

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// judge is a strategy that finds so many problems, and counts how often it is asked for those that are declared.
type judge struct {
	rest.RESTCreateStrategy
	rest.DeclarativeValidation
	problems, asked int
}

func (j *judge) find() field.ErrorList {
	var out field.ErrorList
	for i := range j.problems {
		out = append(out, field.Required(field.NewPath("spec").Index(i), ""))
	}
	return out
}

func (j *judge) Validate(context.Context, runtime.Object) field.ErrorList { return j.find() }

func (j *judge) ValidateDeclaratively(_ context.Context, _, _ runtime.Object, found field.ErrorList, _ operation.Type, _ rest.DeclarativeValidationConfig) field.ErrorList {
	j.asked++
	return found
}

// updateJudge is a judge of updates.
type updateJudge struct {
	rest.RESTUpdateStrategy
	*judge
}

func (updateJudge) NamespaceScoped() bool { return true }

func (j updateJudge) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return j.find()
}

func (j updateJudge) DeclarativeValidationConfig(context.Context, runtime.Object, runtime.Object) rest.DeclarativeValidationConfig {
	return rest.DeclarativeValidationConfig{}
}

// Whatever list of whatever kind it is: once there are as many problems as are told, upstream is not asked to compare them with
// those that it has declared.
func TestFloodsOfProblemsAreNotCompared(t *testing.T) {
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", ResourceVersion: "1"}}
	for problems, asked := range map[int]int{1: 1, maxProblems - 1: 1, maxProblems: 0, 16 * maxProblems: 0} {
		j := &judge{problems: problems}
		equal(t, "found by a create", len(validateCreate(t.Context(), obj, j)), problems)
		equal(t, "asked by a create", j.asked, asked)
		j.asked = 0
		equal(t, "found by an update", len(validateUpdate(t.Context(), obj, obj, updateJudge{judge: j})), problems)
		equal(t, "asked by an update", j.asked, asked)
	}
}
