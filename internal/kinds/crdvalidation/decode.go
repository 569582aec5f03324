package crdvalidation

import (
	"slices"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Decode decodes the JSON of a CRD of apiextensions.k8s.io/v1. The function byType decodes JSON with the Go type of
// CRDs. Unlike byType, Decode keeps the empty lists and maps in the versions. It has a fast path for CRDs whose
// schemas are canonical, in which byType does not decode the schemas. The Go type is slow because it decodes nested
// items repeatedly.
func Decode(js []byte, byType func([]byte) (object.Tree, []string, error)) (object.Tree, []string, error) {
	sent, repeated, err := object.DecodeJSON(js)
	if err != nil || len(repeated) > 0 {
		return byType(js)
	}
	t, strict, ok := decodeCanonical(sent, byType)
	if !ok {
		if t, strict, err = byType(js); err != nil {
			return nil, nil, err
		}
	}
	if ok {
		object.NormalizeNumbers(t)
		return t, strict, nil
	}
	was := versionsOf(sent)
	for i, version := range versionsOf(t) {
		restoreEmpty(version, was[i])
	}
	return t, strict, nil
}

// versionsOf returns the versions of a CRD. A version that is not an object is nil.
func versionsOf(crd object.Tree) []object.Tree {
	spec, _ := crd["spec"].(object.Tree)
	list, _ := spec["versions"].([]any)
	all := make([]object.Tree, len(list))
	for i := range list {
		all[i], _ = list[i].(object.Tree)
	}
	return all
}

// decodeCanonical is the fast path of Decode. It returns false if a schema is not canonical or there is any error.
// The caller then uses the Go type.
func decodeCanonical(t object.Tree, byType func([]byte) (object.Tree, []string, error)) (object.Tree, []string, bool) {
	shell, versions, ok := withoutSchemas(t)
	if !ok {
		return nil, nil, false
	}
	for _, v := range versions {
		validation, _ := v["schema"].(object.Tree)
		if v == nil || len(validation) > 0 && !isCanonical(validation["openAPIV3Schema"]) ||
			slices.ContainsFunc(versionLists, func(key string) bool { return isEmpty(v[key]) }) {
			return nil, nil, false
		}
	}
	out, strict, err := byType(object.AppendJSON(nil, shell))
	if err != nil || len(strict) > 0 {
		return nil, nil, false
	}
	spec, _ := out["spec"].(object.Tree)
	list, _ := spec["versions"].([]any)
	for i, v := range versions {
		if v["schema"] != nil {
			list[i].(object.Tree)["schema"] = v["schema"]
		}
	}
	return out, nil, true
}

// canonicalKeywords contains the keywords of a canonical schema, each with a check of its value. Empty values are
// not canonical, because the Go type omits them.
var canonicalKeywords = func() map[string]func(any) bool {
	all := map[string]func(any) bool{
		"default": isNonNull, "example": isNonNull, "enum": listOf(isNonNull),
		"required": listOf(isString), "x-kubernetes-list-map-keys": listOf(isString),
		"x-kubernetes-validations":             listOf(isCanonicalRule),
		"x-kubernetes-preserve-unknown-fields": isBool, "x-kubernetes-list-type": isString,
		"x-kubernetes-map-type": isString,
	}
	for _, name := range []string{"description", "type", "format", "title", "pattern"} {
		all[name] = isText
	}
	for _, name := range []string{"nullable", "exclusiveMaximum", "exclusiveMinimum", "uniqueItems",
		"x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"} {
		all[name] = isTrue
	}
	for _, name := range []string{"maximum", "minimum", "multipleOf"} {
		all[name] = isNumber
	}
	for _, name := range []string{"maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"} {
		all[name] = isInteger
	}
	return all
}()

// isCanonical reports whether decoding and encoding by the Go type leave a schema unchanged.
func isCanonical(v any) bool {
	s, ok := v.(object.Tree)
	if !ok {
		return false
	}
	for key, v := range s {
		switch key {
		case "properties":
			below, _ := v.(object.Tree)
			if ok = len(below) > 0; ok {
				ok = allCanonical(below)
			}
		case "items", "not":
			ok = isCanonical(v)
		case "allOf", "anyOf", "oneOf":
			ok = listOf(isCanonical)(v)
		case "additionalProperties":
			ok = isBool(v) || isCanonical(v)
		default:
			is := canonicalKeywords[key]
			ok = is != nil && is(v)
		}
		if !ok {
			return false
		}
	}
	return true
}

func allCanonical(named object.Tree) bool {
	for _, v := range named {
		if !isCanonical(v) {
			return false
		}
	}
	return true
}

func isCanonicalRule(v any) bool {
	rule, ok := v.(object.Tree)
	if !ok || !isString(rule["rule"]) {
		return false
	}
	for key, v := range rule {
		switch key {
		case "rule", "reason":
			ok = isString(v)
		case "message", "messageExpression", "fieldPath":
			ok = isText(v)
		default:
			ok = key == "optionalOldSelf" && isBool(v)
		}
		if !ok {
			return false
		}
	}
	return true
}

func isNonNull(v any) bool { return v != nil }
func isString(v any) bool  { _, ok := v.(string); return ok }
func isText(v any) bool    { return isString(v) && v != "" }
func isBool(v any) bool    { _, ok := v.(bool); return ok }
func isTrue(v any) bool    { return v == true }
func isInteger(v any) bool { _, ok := v.(int64); return ok }

// isNumber reports whether a float64 represents v exactly.
func isNumber(v any) bool {
	const exact = 1 << 53
	i, ok := v.(int64)
	if _, isFloat := v.(float64); isFloat {
		return true
	}
	return ok && -exact <= i && i <= exact
}

// listOf returns a check for non-empty lists. The check calls the function is for each item.
func listOf(is func(any) bool) func(any) bool {
	return func(v any) bool {
		list, ok := v.([]any)
		for i := range list {
			ok = ok && is(list[i])
		}
		return ok && len(list) > 0
	}
}
