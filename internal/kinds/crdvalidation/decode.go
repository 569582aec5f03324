package crdvalidation

import (
	"slices"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Decode reads the JSON of a CRD of apiextensions.k8s.io/v1 to what byType, which goes by the Go type, makes of it, but
// with what is empty in its versions. Where schemas are as they are written back, and nothing is wrong, the Go type does not
// see them: where they lie in one another by items, it reads the inner ones again and again.
func Decode(js []byte, byType func([]byte) (object.Tree, []string, error)) (object.Tree, []string, error) {
	sent, repeated, err := object.DecodeJSON(js)
	if err != nil || len(repeated) > 0 {
		return byType(js)
	}
	t, strict, ok := decodeSettled(sent, byType)
	if !ok {
		if t, strict, err = byType(js); err != nil {
			return nil, nil, err
		}
	}
	if ok {
		object.WholeNumbers(t)
		return t, strict, nil
	}
	was := versionsOf(sent)
	for i, version := range versionsOf(t) {
		restoreEmpty(version, was[i])
	}
	return t, strict, nil
}

// versionsOf are the versions of a CRD; nil stands for what is none.
func versionsOf(crd object.Tree) []object.Tree {
	spec, _ := crd["spec"].(object.Tree)
	list, _ := spec["versions"].([]any)
	all := make([]object.Tree, len(list))
	for i := range list {
		all[i], _ = list[i].(object.Tree)
	}
	return all
}

// decodeSettled returns false for a CRD whose schemas are not as they are written back, or that has any other problem: the Go type
// knows what to make of it.
func decodeSettled(t object.Tree, byType func([]byte) (object.Tree, []string, error)) (object.Tree, []string, bool) {
	shell, versions, ok := withoutSchemas(t)
	if !ok {
		return nil, nil, false
	}
	for _, v := range versions {
		said, _ := v["schema"].(object.Tree)
		if v == nil || len(said) > 0 && !isSettled(said["openAPIV3Schema"]) || slices.ContainsFunc(listsOfVersion, func(key string) bool { return isEmpty(v[key]) }) {
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

// settledBy are the keywords that a schema may say while it counts as settled, each with what its value has to be. What is empty
// would be left out.
var settledBy = func() map[string]func(any) bool {
	all := map[string]func(any) bool{
		"default": isSomething, "example": isSomething, "enum": listOf(isSomething),
		"required": listOf(isString), "x-kubernetes-list-map-keys": listOf(isString), "x-kubernetes-validations": listOf(isSettledRule),
		"x-kubernetes-preserve-unknown-fields": isBool, "x-kubernetes-list-type": isString, "x-kubernetes-map-type": isString,
	}
	for _, name := range []string{"description", "type", "format", "title", "pattern"} {
		all[name] = isText
	}
	for _, name := range []string{"nullable", "exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"} {
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

// isSettled reports that a schema is written back as it was read.
func isSettled(v any) bool {
	s, ok := v.(object.Tree)
	if !ok {
		return false
	}
	for key, v := range s {
		switch key {
		case "properties":
			below, _ := v.(object.Tree)
			if ok = len(below) > 0; ok {
				ok = allSettled(below)
			}
		case "items", "not":
			ok = isSettled(v)
		case "allOf", "anyOf", "oneOf":
			ok = listOf(isSettled)(v)
		case "additionalProperties":
			ok = isBool(v) || isSettled(v)
		default:
			is := settledBy[key]
			ok = is != nil && is(v)
		}
		if !ok {
			return false
		}
	}
	return true
}

func allSettled(named object.Tree) bool {
	for _, v := range named {
		if !isSettled(v) {
			return false
		}
	}
	return true
}

func isSettledRule(v any) bool {
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

func isSomething(v any) bool { return v != nil }
func isString(v any) bool    { _, ok := v.(string); return ok }
func isText(v any) bool      { return isString(v) && v != "" }
func isBool(v any) bool      { _, ok := v.(bool); return ok }
func isTrue(v any) bool      { return v == true }
func isInteger(v any) bool   { _, ok := v.(int64); return ok }

// isNumber is true of what a float64 holds as it stands.
func isNumber(v any) bool {
	const exact = 1 << 53
	i, ok := v.(int64)
	if _, isFloat := v.(float64); isFloat {
		return true
	}
	return ok && -exact <= i && i <= exact
}

// listOf is true of a list that is not empty, of items for which is holds.
func listOf(is func(any) bool) func(any) bool {
	return func(v any) bool {
		list, ok := v.([]any)
		for i := range list {
			ok = ok && is(list[i])
		}
		return ok && len(list) > 0
	}
}
