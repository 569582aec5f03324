package controllers_test

import (
	"context"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	flow "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/controllers/bootstrap"
	"github.com/trellis-k8s/trellis/testserver"
)

// awaitDangling waits until a FlowSchema has exactly the given condition.
func awaitDangling(t *testing.T, c kubernetes.Interface, name string, want flowcontrolv1.FlowSchemaCondition) {
	t.Helper()
	var got []flowcontrolv1.FlowSchemaCondition
	err := wait.PollUntilContextTimeout(
		t.Context(),
		5*time.Millisecond,
		30*time.Second,
		true,
		func(ctx context.Context) (bool, error) {
			s, err := c.FlowcontrolV1().FlowSchemas().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			got = s.Status.Conditions
			if len(got) != 1 || got[0].LastTransitionTime.IsZero() {
				return false, nil
			}
			got[0].LastTransitionTime = metav1.Time{}
			return got[0] == want, nil
		},
	)
	if err != nil {
		t.Errorf("%s has the conditions %+v, want %+v: %v", name, got, want, err)
	}
}

func found(level string) flowcontrolv1.FlowSchemaCondition {
	return flowcontrolv1.FlowSchemaCondition{Type: "Dangling", Status: "False", Reason: "Found",
		Message: `This FlowSchema references the PriorityLevelConfiguration object named "` + level + `" and it exists`}
}

func notFound(level string) flowcontrolv1.FlowSchemaCondition {
	return flowcontrolv1.FlowSchemaCondition{Type: "Dangling", Status: "True", Reason: "NotFound",
		Message: `This FlowSchema references the PriorityLevelConfiguration object named "` + level +
			`" but there is no such object`}
}

func flowSchema(name, level string) *flowcontrolv1.FlowSchema {
	return &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: flowcontrolv1.FlowSchemaSpec{
		MatchingPrecedence:         500,
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level}}}
}

// TestDanglingFlowSchemas checks that the condition Dangling of a FlowSchema follows its reference and the existing
// priority levels. A change of the condition by a client is reverted.
func TestDanglingFlowSchemas(t *testing.T) {
	c := kubernetes.NewForConfigOrDie(testserver.Start(t).Config)
	for _, s := range append(flow.MandatoryFlowSchemas, flow.SuggestedFlowSchemas...) {
		awaitDangling(t, c, s.Name, found(s.Spec.PriorityLevelConfiguration.Name))
	}
	schemas, levels := c.FlowcontrolV1().FlowSchemas(), c.FlowcontrolV1().PriorityLevelConfigurations()
	if _, err := schemas.Create(t.Context(), flowSchema("mine", "mine"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitDangling(t, c, "mine", notFound("mine"))
	level := flow.SuggestedPriorityLevelConfigurations[0].DeepCopy()
	level.ObjectMeta = metav1.ObjectMeta{Name: "mine"}
	if _, err := levels.Create(t.Context(), level, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitDangling(t, c, "mine", found("mine"))
	s, err := schemas.Get(t.Context(), "mine", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Status.Conditions[0].Status = "Unknown"
	if _, err := schemas.UpdateStatus(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitDangling(t, c, "mine", found("mine"))
	if s, err = schemas.Get(t.Context(), "mine", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, m := range s.ManagedFields {
		if m.Subresource == "status" && m.Operation == metav1.ManagedFieldsOperationApply &&
			m.Manager != "api-priority-and-fairness-config-consumer-v1" {
			t.Errorf("got field manager %s of the condition", m.Manager)
		}
	}
	s.Spec.PriorityLevelConfiguration.Name = "other"
	if _, err := schemas.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitDangling(t, c, "mine", notFound("other"))
	s, err = schemas.Get(t.Context(), "mine", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Spec.PriorityLevelConfiguration.Name = "mine"
	if _, err = schemas.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitDangling(t, c, "mine", found("mine"))
	if err := levels.Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitDangling(t, c, "mine", notFound("mine"))
}

// TestDanglingWithoutFairness checks that, as in upstream, the server does not write the condition when API Priority
// and Fairness is disabled.
func TestDanglingWithoutFairness(t *testing.T) {
	s := testserver.Start(
		t, testserver.With(func(c *apiserver.Config) { c.Fairness = flowcontrol.Config{Disabled: true} }),
	)
	w, c := connect(t, s), kubernetes.NewForConfigOrDie(s.Config)
	if _, err := c.FlowcontrolV1().FlowSchemas().Create(
		t.Context(), flowSchema("mine", "mine"), metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	w.create(t, namespaces, "", namespace("n")) // when n is deleted, the controllers have observed the FlowSchema
	w.delete(t, namespaces, "", "n", "")
	w.awaitGone(t, namespaces, "", "n")
	if got, err := c.FlowcontrolV1().FlowSchemas().Get(
		t.Context(), "mine", metav1.GetOptions{},
	); err != nil || len(got.Status.Conditions) > 0 {
		t.Errorf("got error %v, status %+v, want no conditions", err, got.Status)
	}
}

// TestReconcileFlowControl checks that ReconcileFlowControl restores the mandatory and suggested objects. It also
// checks that an object is deleted if its annotation marks it as a default object of an earlier release.
func TestReconcileFlowControl(t *testing.T) {
	s := testserver.Start(t)
	c := kubernetes.NewForConfigOrDie(s.Config).FlowcontrolV1()
	for name, annotations := range map[string]map[string]string{
		"mine": nil,
		"old":  {flowcontrolv1.AutoUpdateAnnotationKey: "true"},
		"kept": {flowcontrolv1.AutoUpdateAnnotationKey: "false"},
		"odd":  {flowcontrolv1.AutoUpdateAnnotationKey: "x"},
	} {
		o := flowSchema(name, "catch-all")
		o.Annotations = annotations
		if _, err := c.FlowSchemas().Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		level := flow.SuggestedPriorityLevelConfigurations[0].DeepCopy()
		level.ObjectMeta = metav1.ObjectMeta{Name: name, Annotations: annotations}
		if _, err := c.PriorityLevelConfigurations().Create(t.Context(), level, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"exempt", "probes"} {
		if err := c.FlowSchemas().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := bootstrap.ReconcileFlowControl(t.Context(), kubernetes.NewForConfigOrDie(s.Config)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"mine": true, "kept": true, "odd": true, "exempt": true, "probes": true, "old": false,
	} {
		if _, err := c.FlowSchemas().Get(
			t.Context(), name, metav1.GetOptions{},
		); (err == nil) != want || !want && !apierrors.IsNotFound(err) {
			t.Errorf("FlowSchema %s: got error %v, want existence %t", name, err, want)
		}
		if name == "probes" {
			continue // only a FlowSchema
		}
		if _, err := c.PriorityLevelConfigurations().Get(
			t.Context(), name, metav1.GetOptions{},
		); (err == nil) != want || !want && !apierrors.IsNotFound(err) {
			t.Errorf("PriorityLevelConfiguration %s: got error %v, want existence %t", name, err, want)
		}
	}
}
