package schema

import (
	"slices"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Upstream's Go type omits empty values when it encodes a schema. The functions in this file apply its rules to a
// schema that is decoded as a tree.

// prototypes holds a field of each keyword, whose type determines the form of the values.
var prototypes = func() (all []any) {
	n := &Node{}
	for i := range keywords {
		all = append(all, keywords[i].field(n))
	}
	return all
}()

// prototype returns the field of a keyword, or nil for an unknown keyword.
func prototype(key string) any {
	if i, ok := keywordIndex[key]; ok {
		return prototypes[i]
	}
	return nil
}

// IsCanonical reports whether decoding and encoding by the Go type leave a schema unchanged.
func IsCanonical(v any) bool {
	s, ok := v.(object.Tree)
	if !ok {
		return false
	}
	for key, v := range s {
		if !isCanonicalValue(prototype(key), v) {
			return false
		}
	}
	return true
}

func isCanonicalValue(field, v any) bool {
	switch field.(type) {
	case *string, *copiedText, **Pattern:
		return isString(v) && v != ""
	case *optionalText:
		return isString(v)
	case *bool:
		return v == true
	case *optionalFlag:
		return isBool(v)
	case **int64:
		_, ok := v.(int64)
		return ok
	case **float64:
		return isExactFloat(v)
	case *JSON:
		return v != nil
	case *[]string:
		return isListOf(v, isString)
	case **Enumeration:
		return isListOf(v, func(v any) bool { return v != nil })
	case *Rules:
		return isListOf(v, isCanonicalRule)
	case **Node, *items:
		return IsCanonical(v)
	case *[]*Node:
		return isListOf(v, IsCanonical)
	case *map[string]*Node:
		t, _ := v.(object.Tree)
		for _, v := range t {
			if !IsCanonical(v) {
				return false
			}
		}
		return len(t) > 0
	case **AdditionalProperties:
		return isBool(v) || IsCanonical(v)
	}
	return false
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
			ok = isString(v) && v != ""
		default:
			ok = key == "optionalOldSelf" && isBool(v)
		}
		if !ok {
			return false
		}
	}
	return true
}

func isString(v any) bool { _, ok := v.(string); return ok }

func isBool(v any) bool { _, ok := v.(bool); return ok }

// isExactFloat reports whether a float64 represents v exactly.
func isExactFloat(v any) bool {
	const exact = 1 << 53
	i, ok := v.(int64)
	if _, isFloat := v.(float64); isFloat {
		return true
	}
	return ok && -exact <= i && i <= exact
}

// isListOf reports whether v is a list that is not empty and whose items pass a check.
func isListOf(v any, check func(any) bool) bool {
	list, _ := v.([]any)
	return len(list) > 0 && !slices.ContainsFunc(list, func(v any) bool { return !check(v) })
}

// IsOmitted reports whether the Go type omits a keyword with a null, an empty list or an empty map.
func IsOmitted(key string, v any) bool {
	switch prototype(key).(type) {
	case *items: // an empty schema counts as set
		list, ok := v.([]any)
		return v == nil || ok && len(list) == 0
	case *[]string, *Rules, **Enumeration, *[]*Node, *map[string]*Node, *map[string]*Dependency:
		return v == nil || isEmptyValue(v)
	}
	return v == nil
}

func isEmptyValue(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case object.Tree:
		return len(v) == 0
	}
	return false
}

// AnyTree reports whether f returns true for the schema s, which may be nil, or for a schema below it.
func AnyTree(s object.Tree, f func(object.Tree) bool) bool {
	if s == nil || f(s) {
		return s != nil
	}
	for key, v := range s {
		switch prototype(key).(type) {
		case **Node, *items, *[]*Node, **AdditionalProperties:
			if anyTreeIn(v, f) {
				return true
			}
		case *map[string]*Node, *map[string]*Dependency:
			named, _ := v.(object.Tree)
			for _, v := range named {
				if anyTreeIn(v, f) {
					return true
				}
			}
		}
	}
	return false
}

// anyTreeIn calls AnyTree for a schema or for each schema in a list.
func anyTreeIn(v any, f func(object.Tree) bool) bool {
	if list, ok := v.([]any); ok {
		return slices.ContainsFunc(list, func(v any) bool { return anyTreeIn(v, f) })
	}
	s, _ := v.(object.Tree)
	return AnyTree(s, f)
}

// RestoreEmpty copies the empty lists and maps in the schema sent to the schema s, which the Go type has decoded from
// sent.
func RestoreEmpty(s, sent object.Tree) {
	for key, v := range sent {
		switch prototype(key).(type) {
		case **Node, *items, *[]*Node, **AdditionalProperties:
			restoreIn(s[key], v)
		case *map[string]*Node, *map[string]*Dependency:
			named, _ := v.(object.Tree)
			below, _ := s[key].(object.Tree)
			for name := range named {
				restoreIn(below[name], named[name])
			}
		}
		if isEmptyValue(v) && IsOmitted(key, v) {
			s[key] = v
		}
	}
}

// restoreIn calls RestoreEmpty for a schema or for each schema in a list.
func restoreIn(v, sent any) {
	switch sent := sent.(type) {
	case []any:
		list, _ := v.([]any)
		for i := range min(len(list), len(sent)) {
			restoreIn(list[i], sent[i])
		}
	case object.Tree:
		if s, ok := v.(object.Tree); ok {
			RestoreEmpty(s, sent)
		}
	}
}
