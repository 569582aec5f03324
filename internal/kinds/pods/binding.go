// Package pods implements the subresources binding and eviction of Pods. Its subpackage capacity checks whether a Pod
// fits on its node.
package pods

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Binding returns the subresource pods/binding, by which a scheduler assigns a Pod to a node.
func Binding() resource.Subresource {
	body := define.PostOnly(corev1.SchemeGroupVersion, resource.Names{Kind: "Binding", Plural: "bindings"})
	return resource.Subresource{Name: "binding", Verbs: body.Definition.Verbs, Body: body,
		Check: checkBinding, Act: bind}
}

// LegacyBindings returns the resource bindings, to which old schedulers post Bindings. Its objects are never stored.
func LegacyBindings() *resource.Definition {
	body := define.PostOnly(corev1.SchemeGroupVersion, resource.Names{Kind: "Binding", Plural: "bindings",
		Singular: "binding"})
	body.Served = true
	body.Definition.PostsTo = &resource.Endpoint{Resource: corev1.SchemeGroupVersion.WithResource("pods"),
		Subresource: "binding"}
	return body.Definition
}

func checkBinding(name string, body resource.Internal) error {
	b := body.(*core.Binding)
	if b.Name != name {
		return apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validation.ValidatePodBinding(b); len(errs) != 0 {
		return errs.ToAggregate()
	}
	return nil
}

// bind assigns a Pod to the node in a Binding, as upstream's BindingREST does.
func bind(obj, body resource.Internal) error {
	p, b := obj.(*core.Pod), body.(*core.Binding)
	problem := ""
	switch {
	case p.DeletionTimestamp != nil:
		problem = fmt.Sprintf("pod %s is being deleted, cannot be assigned to a host", p.Name)
	case p.Spec.NodeName != "":
		problem = fmt.Sprintf("pod %v is already assigned to node %q", p.Name, p.Spec.NodeName)
	case len(p.Spec.SchedulingGates) != 0:
		problem = fmt.Sprintf("pod %v has non-empty .spec.schedulingGates", p.Name)
	}
	if problem != "" {
		return apierrors.NewConflict(core.Resource("pods/binding"), p.Name, fmt.Errorf("%s", problem))
	}
	p.Spec.NodeName, p.Status.NominatedNodeName = b.Target.Name, ""
	p.Annotations, p.Labels = merged(p.Annotations, b.Annotations), merged(p.Labels, b.Labels)
	podutil.DropInitContainerAnnotations(p.Annotations)
	podutil.UpdatePodCondition(&p.Status, &core.PodCondition{Type: core.PodScheduled, Status: core.ConditionTrue})
	return nil
}

// merged returns the union of a and b. If both have a key, the result has the value of b. merged does not modify a.
func merged(a, b map[string]string) map[string]string {
	if len(b) == 0 {
		return a
	}
	out := maps.Clone(a)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, b)
	return out
}
