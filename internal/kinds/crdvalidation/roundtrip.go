package crdvalidation

import (
	"maps"
	"slices"

	"github.com/trellis-k8s/trellis/internal/object"
)

// In a schema, an empty list differs from a missing list for upstream's validation and for the ownership of
// spec.versions. The Go type omits empty lists when it encodes a CRD. Therefore a decoded CRD has the empty lists of
// its versions, but the stored CRD does not.

// omittedIfEmpty contains the lists and maps of a schema that the Go type omits if they are empty.
var omittedIfEmpty = map[string]bool{
	"required": true, "enum": true, "allOf": true, "anyOf": true, "oneOf": true, "items": true,
	"properties": true, "patternProperties": true, "definitions": true, "dependencies": true,
	"x-kubernetes-list-map-keys": true, "x-kubernetes-validations": true,
}

// versionLists contains the lists of a version outside the schema that the Go type omits if they are empty.
var versionLists = []string{"additionalPrinterColumns", "selectableFields"}

func isEmpty(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case object.Tree:
		return len(v) == 0
	}
	return false
}

// RoundTrip returns the spec of a CRD as if the Go type had encoded it and decoded it again. spec is not modified.
func RoundTrip(spec object.Tree) object.Tree {
	list, _ := spec["versions"].([]any)
	if !slices.ContainsFunc(list, hasOmitted) {
		return spec
	}
	spec, list = maps.Clone(spec), slices.Clone(list)
	spec["versions"] = list
	for i := range list {
		version, _ := object.CopyValue(list[i]).(object.Tree)
		for _, key := range versionLists {
			if isEmpty(version[key]) {
				delete(version, key)
			}
		}
		anySchema(schemaOf(version), func(s object.Tree) bool {
			maps.DeleteFunc(s, isOmitted)
			return false
		})
		list[i] = version
	}
	return spec
}

// isOmitted reports whether the Go type omits the field or decodes it as a missing field. It decodes null as a
// missing field. An empty list of items is encoded as null.
func isOmitted(key string, v any) bool {
	return v == nil || isEmpty(v) && omittedIfEmpty[key] && !isSchema(key, v)
}

// isSchema reports whether v is a schema in the field items. Even an empty schema there counts as set.
func isSchema(key string, v any) bool {
	_, isTree := v.(object.Tree)
	return key == "items" && isTree
}

func hasOmitted(version any) bool {
	v, _ := version.(object.Tree)
	return slices.ContainsFunc(versionLists, func(key string) bool { return isEmpty(v[key]) }) ||
		anySchema(schemaOf(v), func(s object.Tree) bool {
			for key, v := range s {
				if isOmitted(key, v) {
					return true
				}
			}
			return false
		})
}

func schemaOf(version object.Tree) object.Tree {
	validation, _ := version["schema"].(object.Tree)
	s, _ := validation["openAPIV3Schema"].(object.Tree)
	return s
}

// anySchema calls f with s and each schema below it, until f returns true.
func anySchema(s object.Tree, f func(object.Tree) bool) bool {
	if s == nil {
		return false
	}
	if f(s) {
		return true
	}
	for key, v := range s {
		found := false
		switch key {
		case "items", "not", "additionalProperties", "additionalItems", "allOf", "anyOf", "oneOf":
			found = anySchemaIn(v, f)
		case "properties", "patternProperties", "definitions", "dependencies":
			named, _ := v.(object.Tree)
			for _, v := range named {
				if found = anySchemaIn(v, f); found {
					break
				}
			}
		}
		if found {
			return true
		}
	}
	return false
}

// anySchemaIn calls anySchema for a schema or for each schema in a list.
func anySchemaIn(v any, f func(object.Tree) bool) bool {
	if list, ok := v.([]any); ok {
		return slices.ContainsFunc(list, func(v any) bool { return anySchemaIn(v, f) })
	}
	s, _ := v.(object.Tree)
	return anySchema(s, f)
}

// restoreEmpty copies the empty lists and maps in sent to version. The Go type has decoded version from sent.
func restoreEmpty(version, sent object.Tree) {
	for _, key := range versionLists {
		if isEmpty(sent[key]) {
			version[key] = sent[key]
		}
	}
	restoreBelow(schemaOf(version), schemaOf(sent))
}

func restoreBelow(v, sent any) {
	switch sent := sent.(type) {
	case []any:
		list, _ := v.([]any)
		for i := range min(len(list), len(sent)) {
			restoreBelow(list[i], sent[i])
		}
	case object.Tree:
		if s, ok := v.(object.Tree); ok {
			restoreInSchema(s, sent)
		}
	}
}

func restoreInSchema(s, sent object.Tree) {
	for key, v := range sent {
		if omittedIfEmpty[key] && isEmpty(v) {
			s[key] = v
			continue
		}
		switch key {
		case "items", "not", "additionalProperties", "additionalItems", "allOf", "anyOf", "oneOf":
			restoreBelow(s[key], v)
		case "properties", "patternProperties", "definitions", "dependencies":
			named, _ := v.(object.Tree)
			below, _ := s[key].(object.Tree)
			for name := range named {
				restoreBelow(below[name], named[name])
			}
		}
	}
}
