package crdvalidation

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	listTypeField = "x-kubernetes-list-type"
	listKeysField = "x-kubernetes-list-map-keys"
	mapTypeField  = "x-kubernetes-map-type"
)

// mergeStrategy checks the extensions that define how objects merge.
func (w *walker) mergeStrategy(s *schema, path *field.Path) {
	if p := s.XPreserveUnknownFields; p != nil && !*p {
		w.add(field.Invalid(path.Child("x-kubernetes-preserve-unknown-fields"), *p, "must be true or undefined"))
	}
	if t := s.XMapType; t != nil {
		w.requireType(s, path, "object", mapTypeField)
		if *t != "atomic" && *t != "granular" {
			w.add(field.NotSupported(path.Child(mapTypeField), *t, []string{"atomic", "granular"}))
		}
	}
	if t := s.XListType; t != nil {
		if s.Type != "array" {
			w.requireType(s, path, "array", listTypeField)
		} else if w.atomicSets {
			w.add(atomicSetItems(s, path)...)
		}
		if *t != "atomic" && *t != "set" && *t != "map" {
			w.add(field.NotSupported(path.Child(listTypeField), *t, []string{"atomic", "set", "map"}))
		}
	}
	if len(s.XListMapKeys) > 0 {
		const message = "must be map if x-kubernetes-list-map-keys is non-empty"
		if s.XListType == nil {
			w.add(field.Required(path.Child(listTypeField), message))
		} else if *s.XListType != "map" {
			w.add(field.Invalid(path.Child(listTypeField), *s.XListType, message))
		}
	}
	if s.XListType != nil && *s.XListType == "map" {
		w.listMap(s, path)
	}
	if w.listMapKeys {
		w.add(listMapKeys(s, path)...)
	}
}

func (w *walker) requireType(s *schema, path *field.Path, want, keyword string) {
	message := "must be " + want + " if " + keyword + " is specified"
	switch s.Type {
	case want:
	case "":
		w.add(field.Required(path.Child("type"), message))
	default:
		w.add(field.Invalid(path.Child("type"), s.Type, message))
	}
}

// atomicSetItems checks that the items of a set are atomic, so that they cannot be merged field by field.
func atomicSetItems(s *schema, path *field.Path) field.ErrorList {
	if s.XListType == nil || *s.XListType != "set" || s.Items == nil || s.Items.Schema == nil {
		return nil
	}
	const message = "must be atomic as item of a list with x-kubernetes-list-type=set"
	items := s.Items.Schema
	switch {
	case items.Type == "array" && items.XListType != nil && *items.XListType != "atomic":
		return field.ErrorList{field.Invalid(path.Child("items").Child(listTypeField), items.XListType, message)}
	case items.Type == "object" && (items.XMapType == nil || *items.XMapType != "atomic"):
		return field.ErrorList{field.Invalid(path.Child("items").Child(mapTypeField), items.XListType, message)}
	}
	return nil
}

func (w *walker) listMap(s *schema, path *field.Path) {
	if len(s.XListMapKeys) == 0 {
		w.add(field.Required(path.Child(listKeysField), "must not be empty if x-kubernetes-list-type is map"))
	}
	switch {
	case s.Items == nil:
		w.add(field.Required(path.Child("items"), "must have a schema if x-kubernetes-list-type is map"))
		return
	case s.Items.Schema == nil:
		w.add(field.Invalid(path.Child("items"), s.Items,
			"must only have a single schema if x-kubernetes-list-type is map"))
		return
	case s.Items.Schema.Type != "object":
		w.add(field.Invalid(path.Child("items").Child("type"), s.Items.Schema.Type,
			"must be object if parent array's x-kubernetes-list-type is map"))
		return
	}
	items := s.Items.Schema
	for i, key := range s.XListMapKeys {
		if p, ok := items.Properties[key]; !ok {
			w.add(field.Invalid(path.Child(listKeysField), s.XListMapKeys,
				"entries must all be names of item properties"))
		} else if p.Type == "array" || p.Type == "object" {
			w.add(field.Invalid(path.Child("items").Child("properties").Key(key).Child("type"), items.Type,
				"must be a scalar type if parent array's x-kubernetes-list-type is map"))
		}
		if slices.Contains(s.XListMapKeys[:i], key) {
			w.add(field.Invalid(path.Child(listKeysField), s.XListMapKeys, "must not contain duplicate entries"))
		}
	}
}

// listMapKeys checks that the items of a set or list-type map are not null, and that the keys of a list-type map
// are always set.
func listMapKeys(s *schema, path *field.Path) (errs field.ErrorList) {
	if s.Items == nil || s.Items.Schema == nil || s.XListType == nil || *s.XListType != "set" && *s.XListType != "map" {
		return nil
	}
	items := s.Items.Schema
	if items.Nullable {
		errs = append(errs, field.Forbidden(path.Child("items").Child("nullable"),
			"cannot be nullable when x-kubernetes-list-type is "+*s.XListType))
	}
	if *s.XListType == "set" {
		return errs
	}
	for _, key := range s.XListMapKeys {
		p, ok := items.Properties[key]
		if !ok {
			continue // reported by listMap
		}
		at := path.Child("items").Child("properties").Key(key)
		if !slices.Contains(items.Required, key) && p.Default == nil {
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
