package crdvalidation

import (
	"maps"
	"slices"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// In a schema, an empty list differs from a missing list for upstream's validation and for the ownership of
// spec.versions. The Go type omits empty lists when it encodes a CRD. Therefore a decoded CRD has the empty lists of
// its versions, but the stored CRD does not.

// versionLists contains the lists of a version outside the schema that the Go type omits if they are empty.
var versionLists = []string{"additionalPrinterColumns", "selectableFields"}

// Decode decodes the JSON of a CRD of apiextensions.k8s.io/v1. The function byType decodes JSON with the Go type of
// CRDs. Unlike byType, Decode keeps the empty lists and maps in the versions. It has a fast path for CRDs whose
// schemas are canonical, in which byType does not decode the schemas. The Go type is slow because it decodes nested
// items repeatedly.
func Decode(js []byte, byType func([]byte) (object.Tree, []string, error)) (object.Tree, []string, error) {
	sent, repeated, err := object.DecodeJSON(js)
	if err != nil || len(repeated) > 0 {
		return byType(js)
	}
	if t, ok := decodeCanonical(sent, byType); ok {
		object.NormalizeNumbers(t)
		return t, nil, nil
	}
	t, strict, err := byType(js)
	if err != nil {
		return nil, nil, err
	}
	was := versionsOf(sent)
	for i, version := range versionsOf(t) {
		for _, key := range versionLists {
			if isEmpty(was[i][key]) {
				version[key] = was[i][key]
			}
		}
		if s := schemaOf(version); s != nil {
			schema.RestoreEmpty(s, schemaOf(was[i]))
		}
	}
	return t, strict, nil
}

// decodeCanonical is the fast path of Decode. It returns false if a schema is not canonical or there is any error.
// The caller then uses the Go type.
func decodeCanonical(t object.Tree, byType func([]byte) (object.Tree, []string, error)) (object.Tree, bool) {
	shell, versions := withoutSchemas(t)
	for _, v := range versions {
		if v == nil || v["schema"] != nil && !isCanonicalField(v["schema"]) || hasEmptyList(v) {
			return nil, false
		}
	}
	out, strict, err := byType(object.AppendJSON(nil, shell))
	if err != nil || len(strict) > 0 {
		return nil, false
	}
	for i, v := range versionsOf(out) {
		if versions[i]["schema"] != nil {
			v["schema"] = versions[i]["schema"]
		}
	}
	return out, true
}

// isCanonicalField reports whether v, the field schema of a version, is empty or has a canonical schema.
func isCanonicalField(v any) bool {
	field, ok := v.(object.Tree)
	return ok && (len(field) == 0 || len(field) == 1 && schema.IsCanonical(field["openAPIV3Schema"]))
}

func hasEmptyList(version object.Tree) bool {
	return slices.ContainsFunc(versionLists, func(key string) bool { return isEmpty(version[key]) })
}

func isEmpty(v any) bool {
	list, ok := v.([]any)
	return ok && len(list) == 0
}

func schemaOf(version object.Tree) object.Tree {
	field, _ := version["schema"].(object.Tree)
	s, _ := field["openAPIV3Schema"].(object.Tree)
	return s
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
		schema.AnyTree(schemaOf(version), func(s object.Tree) bool {
			maps.DeleteFunc(s, schema.IsOmitted)
			return false
		})
		list[i] = version
	}
	return spec
}

func hasOmitted(version any) bool {
	v, _ := version.(object.Tree)
	return hasEmptyList(v) || schema.AnyTree(schemaOf(v), func(s object.Tree) bool {
		for key, v := range s {
			if schema.IsOmitted(key, v) {
				return true
			}
		}
		return false
	})
}
