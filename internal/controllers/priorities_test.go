package controllers_test

import (
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	flow "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"

	"github.com/trellis-k8s/trellis/internal/controllers/bootstrap"
	"github.com/trellis-k8s/trellis/testserver"
)

// TestBootstrapPriorities checks that a new server has upstream's priorities of Pods and requests. Changes by users
// are kept, except for mandatory objects.
func TestBootstrapPriorities(t *testing.T) {
	s := testserver.Start(t)
	client := kubernetes.NewForConfigOrDie(s.Config)
	classes, schemas, levels := client.SchedulingV1().
		PriorityClasses(),
		client.FlowcontrolV1().
			FlowSchemas(),
		client.FlowcontrolV1().
			PriorityLevelConfigurations()
	for _, want := range schedulingv1.SystemPriorityClasses() {
		got, err := classes.Get(t.Context(), want.Name, metav1.GetOptions{})
		if err != nil || got.Value != want.Value || got.Description != want.Description {
			t.Errorf("%s: %v %+v", want.Name, err, got)
		}
	}
	for _, want := range append(
		flow.MandatoryPriorityLevelConfigurations, flow.SuggestedPriorityLevelConfigurations...,
	) {
		if got, err := levels.Get(t.Context(), want.Name, metav1.GetOptions{}); err != nil ||
			got.Spec.Type != want.Spec.Type {
			t.Errorf("%s: %v %+v", want.Name, err, got)
		}
	}
	for _, want := range append(flow.MandatoryFlowSchemas, flow.SuggestedFlowSchemas...) {
		got, err := schemas.Get(t.Context(), want.Name, metav1.GetOptions{})
		if err != nil || got.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] != "true" {
			t.Errorf("%s: %v %+v", want.Name, err, got)
			continue
		}
		same(t, want.Name, got.Spec.Rules, want.Spec.Rules)
	}
	change := func(name string) *flowcontrolv1.FlowSchema {
		f, err := schemas.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if name != "exempt" { // its spec cannot be changed
			f.Spec.Rules = nil
		}
		f.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] = "false"
		if f, err = schemas.Update(t.Context(), f, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return f
	}
	change("exempt")
	changed := change("probes")
	if err := classes.Delete(t.Context(), "system-node-critical", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := bootstrap.Reconcile(t.Context(), kubernetes.NewForConfigOrDie(s.Config), nil); err != nil {
		t.Fatal(err)
	}
	if f, err := schemas.Get(t.Context(), "exempt", metav1.GetOptions{}); err != nil ||
		f.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] != "true" {
		t.Errorf("exempt: %v %+v", err, f)
	}
	if f, err := schemas.Get(t.Context(), "probes", metav1.GetOptions{}); err != nil ||
		f.ResourceVersion != changed.ResourceVersion {
		t.Errorf("probes: %v %+v", err, f)
	}
	if _, err := classes.Get(t.Context(), "system-node-critical", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
