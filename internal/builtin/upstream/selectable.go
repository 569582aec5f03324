package upstream

import (
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// attributes are an object's labels, and its fields that can be selected by.
type attributes func(runtime.Object) (labels.Set, fields.Set, error)

// Fields are the fields of obj that selectors may name, by the names that Endpoint.Selector translates into.
func (k *Kind) Fields(obj Object) (fields.Set, error) {
	if k.attributes == nil {
		set := fields.Set{"metadata.name": obj.GetName()}
		if k.Namespaced {
			set["metadata.namespace"] = obj.GetNamespace()
		}
		return set, nil
	}
	_, set, err := k.attributes(obj)
	return set, err
}

// FieldNames are the names in Fields, sorted.
func (k *Kind) FieldNames() ([]string, error) {
	e := k.Storage()
	obj, err := e.Internal(e.Type.New())
	if err != nil {
		return nil, err
	}
	set, err := k.Fields(obj)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}
