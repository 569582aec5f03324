package crdvalidation

import (
	"maps"
	"slices"

	"github.com/trellis-k8s/trellis/internal/object"
)

// An empty list in a schema is not the same as none, to upstream's validation and to who owns spec.versions; but the Go type
// leaves it out where a CRD is written. So a CRD is decoded with what is empty in its versions, and stored without.

// leftOut are the lists and maps of a schema that are not written where they are empty.
var leftOut = map[string]bool{
	"required": true, "enum": true, "allOf": true, "anyOf": true, "oneOf": true, "items": true,
	"properties": true, "patternProperties": true, "definitions": true, "dependencies": true,
	"x-kubernetes-list-map-keys": true, "x-kubernetes-validations": true,
}

// listsOfVersion are those beside the schema.
var listsOfVersion = []string{"additionalPrinterColumns", "selectableFields"}

func isEmpty(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case object.Tree:
		return len(v) == 0
	}
	return false
}

// RoundTrip is the spec of a CRD as it is when what is written of it is read again. spec is not modified.
func RoundTrip(spec object.Tree) object.Tree {
	list, _ := spec["versions"].([]any)
	if !slices.ContainsFunc(list, isUnwritten) {
		return spec
	}
	spec, list = maps.Clone(spec), slices.Clone(list)
	spec["versions"] = list
	for i := range list {
		version, _ := object.CopyValue(list[i]).(object.Tree)
		for _, key := range listsOfVersion {
			if isEmpty(version[key]) {
				delete(version, key)
			}
		}
		everySchema(schemaOf(version), func(s object.Tree) bool {
			maps.DeleteFunc(s, isLeftOut)
			return false
		})
		list[i] = version
	}
	return spec
}

// isLeftOut is true of what is not written, or is not read again: the null that an empty list of items is written as.
func isLeftOut(key string, v any) bool {
	return v == nil || isEmpty(v) && leftOut[key] && !isSchema(key, v)
}

// isSchema is true of an empty schema, which says that there are items.
func isSchema(key string, v any) bool {
	_, isTree := v.(object.Tree)
	return key == "items" && isTree
}

func isUnwritten(version any) bool {
	v, _ := version.(object.Tree)
	return slices.ContainsFunc(listsOfVersion, func(key string) bool { return isEmpty(v[key]) }) ||
		everySchema(schemaOf(v), func(s object.Tree) bool {
			for key, v := range s {
				if isLeftOut(key, v) {
					return true
				}
			}
			return false
		})
}

func schemaOf(version object.Tree) object.Tree {
	said, _ := version["schema"].(object.Tree)
	s, _ := said["openAPIV3Schema"].(object.Tree)
	return s
}

// everySchema calls f with s and each schema below it, until it returns true.
func everySchema(s object.Tree, f func(object.Tree) bool) bool {
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
			found = everyOf(v, f)
		case "properties", "patternProperties", "definitions", "dependencies":
			named, _ := v.(object.Tree)
			for _, v := range named {
				if found = everyOf(v, f); found {
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

// everyOf is everySchema for a schema or a list of such.
func everyOf(v any, f func(object.Tree) bool) bool {
	if list, ok := v.([]any); ok {
		return slices.ContainsFunc(list, func(v any) bool { return everyOf(v, f) })
	}
	s, _ := v.(object.Tree)
	return everySchema(s, f)
}

// restoreEmpty puts into version, which went through its Go type, what is empty in sent, from which it was read.
func restoreEmpty(version, sent object.Tree) {
	for _, key := range listsOfVersion {
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
		if leftOut[key] && isEmpty(v) {
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
