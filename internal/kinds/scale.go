package kinds

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// replicasScale returns the description of /scale for kinds with the field replicas. The function selector formats
// the selector of an object.
func replicasScale(selector func(any) (string, error)) *resource.Scale {
	return &resource.Scale{
		SpecReplicas: []string{"spec", "replicas"}, StatusReplicas: []string{"status", "replicas"},
		LabelSelector: []string{"spec", "selector"}, Selector: selector,
	}
}

// formatLabelSelector formats a LabelSelector.
func formatLabelSelector(v any) (string, error) {
	t, _ := v.(object.Tree)
	if t == nil {
		return "", nil
	}
	var s metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(t, &s); err != nil {
		return "", err
	}
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		return "", err
	}
	return selector.String(), nil
}

// formatLabelSet formats the selector of a ReplicationController, which is a set of labels.
func formatLabelSet(v any) (string, error) {
	t, _ := v.(object.Tree)
	set := labels.Set{}
	for key, value := range t {
		set[key], _ = value.(string)
	}
	return set.AsSelector().String(), nil
}
