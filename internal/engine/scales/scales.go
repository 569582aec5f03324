// Package scales computes the Scale of an object, and the changes of the object by its Scale.
package scales

import (
	"fmt"
	"math"
	"strings"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Version is the version autoscaling/v1 of Scale. The bodies and the results of all requests to /scale are of
// this version.
var Version = newVersion(false)

// BuiltinVersion is Version with the Table columns for built-in kinds.
var BuiltinVersion = newVersion(true)

func newVersion(builtin bool) *resource.Version {
	v := &resource.Version{
		Definition: &resource.Definition{
			Group:      "autoscaling",
			Names:      resource.Names{Plural: "scales", Singular: "scale", Kind: "Scale"},
			Namespaced: true,
		},
		GroupVersion: autoscalingv1.SchemeGroupVersion,
		APIVersion:   autoscalingv1.SchemeGroupVersion.String(),
		Served:       true,
		Columns:      columns(builtin),
		Type:         &resource.GoType{New: func() runtime.Object { return new(autoscalingv1.Scale) }},
	}
	v.Parseable = sync.OnceValues(v.Type.Parseable)
	v.Definition.Versions = []*resource.Version{v}
	v.Definition.Storage = v
	return v
}

// columns returns the columns of the Scale of a built-in or custom kind.
func columns(builtin bool) []resource.Column {
	name, desired, available, age := resource.NameColumn(),
		resource.Column{Name: "Desired", Type: "integer", Description: "Number of desired replicas",
			Path: []string{"spec", "replicas"}},
		resource.Column{Name: "Available", Type: "integer", Description: "Number of actual replicas",
			Path: []string{"status", "replicas"}},
		resource.AgeColumn("date")
	if builtin {
		name.Format, age.Type = "", "string"
		desired.Description = autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"]
		available.Description = autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]
	}
	return []resource.Column{name, desired, available, age}
}

// DotPath returns the text of a path for messages.
func DotPath(path []string) string { return "." + strings.Join(path, ".") }

// Of returns the Scale of the object parent. found is false if the object's spec has no replicas.
func Of(s *resource.Scale, parent object.Tree) (scale object.Tree, found bool, err error) {
	replicas, found, err := int32At(parent, s.SpecReplicas)
	if err != nil {
		return nil, false, err
	}
	current, _, err := int32At(parent, s.StatusReplicas)
	if err != nil {
		return nil, false, err
	}
	var selector string
	if len(s.LabelSelector) > 0 {
		if selector, err = selectorOf(s, parent); err != nil {
			return nil, false, err
		}
	}
	md := object.Tree{}
	for _, key := range []string{"name", "namespace", "uid", "resourceVersion", "creationTimestamp"} {
		object.CopyField(md, object.Metadata(parent), key)
	}
	spec, status := object.Tree{}, object.Tree{"replicas": current}
	if replicas != 0 {
		spec["replicas"] = replicas
	}
	if selector != "" {
		status["selector"] = selector
	}
	return object.Tree{
		"apiVersion": Version.APIVersion, "kind": "Scale",
		"metadata": md, "spec": spec, "status": status,
	}, found, nil
}

func selectorOf(s *resource.Scale, parent object.Tree) (string, error) {
	if s.Selector == nil {
		text, _, err := unstructured.NestedString(parent, s.LabelSelector...)
		return text, err
	}
	v, _, err := unstructured.NestedFieldNoCopy(parent, s.LabelSelector...)
	if err != nil {
		return "", err
	}
	return s.Selector(v)
}

func int32At(t object.Tree, path []string) (int64, bool, error) {
	n, found, err := unstructured.NestedInt64(t, path...)
	if err == nil && (n > math.MaxInt32 || n < math.MinInt32) {
		err = fmt.Errorf("%s: %d is not a 32-bit integer", DotPath(path), n)
	}
	return n, found, err
}

// Set sets the value at a path of t. It modifies t, but copies the objects on the path below t.
func Set(t object.Tree, value any, path []string) error {
	for i, name := range path[:len(path)-1] {
		next, ok := t[name].(object.Tree)
		if t[name] != nil && !ok {
			return fmt.Errorf("value cannot be set because %s is not an object", DotPath(path[:i+1]))
		}
		copied := make(object.Tree, len(next)+1)
		for k, v := range next {
			copied[k] = v
		}
		t[name] = copied
		t = copied
	}
	t[path[len(path)-1]] = value
	return nil
}

// Validate validates the fields that /scale reads.
func Validate(s *resource.Scale, t object.Tree, spec bool) (errs field.ErrorList) {
	if s == nil {
		return nil
	}
	if spec {
		errs = append(errs, validateReplicas(t, s.SpecReplicas)...)
	}
	errs = append(errs, validateReplicas(t, s.StatusReplicas)...)
	if len(s.LabelSelector) > 0 {
		if text, _, err := unstructured.NestedString(t, s.LabelSelector...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(DotPath(s.LabelSelector)), text, err.Error()))
		}
	}
	return errs
}

func validateReplicas(t object.Tree, path []string) field.ErrorList {
	n, _, err := unstructured.NestedInt64(t, path...)
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
	case n < 0:
		problem = "should be a non-negative integer"
	case n > math.MaxInt32:
		problem = fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath(DotPath(path)), n, problem)}
}
