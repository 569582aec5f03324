package controllers

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func conditions(u *unstructured.Unstructured) []any {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	return list
}

func isConditionTrue(u *unstructured.Unstructured, kind string) bool {
	for _, c := range conditions(u) {
		if m, _ := c.(map[string]any); m["type"] == kind {
			return m["status"] == "True"
		}
	}
	return false
}

// conditionMessage returns the message of a condition, or "" if u does not have the condition.
func conditionMessage(u *unstructured.Unstructured, kind string) string {
	for _, c := range conditions(u) {
		if m, _ := c.(map[string]any); m["type"] == kind {
			text, _ := m["message"].(string)
			return text
		}
	}
	return ""
}

func hasCondition(u *unstructured.Unstructured, kind string) bool {
	return slices.ContainsFunc(conditions(u), hasType(kind))
}

func hasType(kind string) func(condition any) bool {
	return func(condition any) bool {
		m, _ := condition.(map[string]any)
		return m["type"] == kind
	}
}

func removeCondition(u *unstructured.Unstructured, kind string) {
	_ = unstructured.SetNestedSlice(u.Object, slices.DeleteFunc(conditions(u), hasType(kind)), "status", "conditions")
}

// setCondition sets status.conditions[type=kind] and reports whether the condition has changed.
func setCondition(u *unstructured.Unstructured, kind, status, reason, message string) bool {
	list := conditions(u)
	want := map[string]any{
		"type": kind, "status": status, "reason": reason, "message": message,
		"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
	}
	for i, c := range list {
		have, _ := c.(map[string]any)
		if have["type"] != kind {
			continue
		}
		if have["status"] == status && have["reason"] == reason && have["message"] == message {
			return false
		}
		if have["status"] == status {
			want["lastTransitionTime"] = have["lastTransitionTime"]
		}
		list[i] = want
		_ = unstructured.SetNestedSlice(u.Object, list, "status", "conditions")
		return true
	}
	_ = unstructured.SetNestedSlice(u.Object, append(list, want), "status", "conditions")
	return true
}
