package crdvalidation

import (
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

const (
	listTypeField = "x-kubernetes-list-type"
	listKeysField = "x-kubernetes-list-map-keys"
	mapTypeField  = "x-kubernetes-map-type"
)

// mergeStrategy checks the extensions that define how objects merge.
func (w *walker) mergeStrategy(n *schema.Node, path *field.Path) {
	if n.Set&preserveKeyword != 0 && !n.Preserve {
		w.add(field.Invalid(path.Child("x-kubernetes-preserve-unknown-fields"), false, "must be true or undefined"))
	}
	if n.Set&mapTypeKeyword != 0 {
		w.requireType(n, path, "object", mapTypeField)
		if n.MapType != "atomic" && n.MapType != "granular" {
			w.add(field.NotSupported(path.Child(mapTypeField), n.MapType, []string{"atomic", "granular"}))
		}
	}
	hasListType := n.Set&listTypeKeyword != 0
	if hasListType {
		if n.Type != "array" {
			w.requireType(n, path, "array", listTypeField)
		} else if w.atomicSets {
			w.add(atomicSetItems(n, path)...)
		}
		if n.ListType != "atomic" && n.ListType != "set" && n.ListType != "map" {
			w.add(field.NotSupported(path.Child(listTypeField), n.ListType, []string{"atomic", "set", "map"}))
		}
	}
	if len(n.ListMapKeys) > 0 {
		const message = "must be map if x-kubernetes-list-map-keys is non-empty"
		if !hasListType {
			w.add(field.Required(path.Child(listTypeField), message))
		} else if n.ListType != "map" {
			w.add(field.Invalid(path.Child(listTypeField), n.ListType, message))
		}
	}
	if n.ListType == "map" {
		w.listMap(n, path)
	}
	if w.listMapKeys {
		w.add(listMapKeys(n, path)...)
	}
}

func (w *walker) requireType(n *schema.Node, path *field.Path, want, keyword string) {
	message := "must be " + want + " if " + keyword + " is specified"
	switch n.WrittenType() {
	case want:
	case "":
		w.add(field.Required(path.Child("type"), message))
	default:
		w.add(field.Invalid(path.Child("type"), n.Type, message))
	}
}

// atomicSetItems checks that the items of a set are atomic, so that they cannot be merged field by field.
func atomicSetItems(n *schema.Node, path *field.Path) field.ErrorList {
	if n.ListType != "set" || n.Items == nil {
		return nil
	}
	const message = "must be atomic as item of a list with x-kubernetes-list-type=set"
	items, listType := n.Items, (*string)(nil)
	if items.Set&listTypeKeyword != 0 {
		listType = &items.ListType
	}
	switch {
	case items.WrittenType() == "array" && listType != nil && *listType != "atomic":
		return field.ErrorList{field.Invalid(path.Child("items").Child(listTypeField), listType, message)}
	case items.WrittenType() == "object" && items.MapType != "atomic":
		return field.ErrorList{field.Invalid(path.Child("items").Child(mapTypeField), listType, message)}
	}
	return nil
}

func (w *walker) listMap(n *schema.Node, path *field.Path) {
	if len(n.ListMapKeys) == 0 {
		w.add(field.Required(path.Child(listKeysField), "must not be empty if x-kubernetes-list-type is map"))
	}
	switch {
	case n.Set&itemsKeyword == 0:
		w.add(field.Required(path.Child("items"), "must have a schema if x-kubernetes-list-type is map"))
		return
	case n.Items == nil:
		w.add(field.Invalid(path.Child("items"), upstreamItems(n),
			"must only have a single schema if x-kubernetes-list-type is map"))
		return
	case n.Items.WrittenType() != "object":
		w.add(field.Invalid(path.Child("items").Child("type"), n.Items.WrittenType(),
			"must be object if parent array's x-kubernetes-list-type is map"))
		return
	}
	items := n.Items
	for i, key := range n.ListMapKeys {
		if p, ok := items.Properties[key]; !ok {
			w.add(field.Invalid(path.Child(listKeysField), n.ListMapKeys,
				"entries must all be names of item properties"))
		} else if typ := p.WrittenType(); typ == "array" || typ == "object" {
			w.add(field.Invalid(path.Child("items").Child("properties").Key(key).Child("type"), items.Type,
				"must be a scalar type if parent array's x-kubernetes-list-type is map"))
		}
		if slices.Contains(n.ListMapKeys[:i], key) {
			w.add(field.Invalid(path.Child(listKeysField), n.ListMapKeys, "must not contain duplicate entries"))
		}
	}
}

// listMapKeys checks that the items of a set or list-type map are not null, and that the keys of a list-type map
// are always set.
func listMapKeys(n *schema.Node, path *field.Path) (errs field.ErrorList) {
	if n.Items == nil || n.ListType != "set" && n.ListType != "map" {
		return nil
	}
	items := n.Items
	if items.Nullable {
		errs = append(errs, field.Forbidden(path.Child("items").Child("nullable"),
			"cannot be nullable when x-kubernetes-list-type is "+n.ListType))
	}
	if n.ListType == "set" {
		return errs
	}
	for _, key := range n.ListMapKeys {
		p, ok := items.Properties[key]
		if !ok {
			continue // reported by listMap
		}
		at := path.Child("items").Child("properties").Key(key)
		if !slices.Contains(items.Required, key) && p.Default == "" {
			errs = append(errs, field.Required(at.Child("default"),
				"this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"))
		}
		if p.Nullable {
			errs = append(errs, field.Forbidden(at.Child("nullable"),
				"this property is in x-kubernetes-list-map-keys, so it cannot be nullable"))
		}
	}
	return errs
}

// upstreamItems returns the keyword items of n in upstream's type, as errors print it.
func upstreamItems(n *schema.Node) *apiextensions.JSONSchemaPropsOrArray {
	props, err := n.Upstream()
	if err != nil {
		return nil
	}
	return props.Items
}
