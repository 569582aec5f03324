package strategy

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// normalizeMetadata converts the metadata of a custom object to the JSON form of metav1.ObjectMeta. It drops empty
// fields and unknown fields, and returns the paths of the unknown fields. The error for a field of the wrong type
// equals upstream's.
func normalizeMetadata(t object.Tree) (unknown []string, err error) {
	raw, ok := t["metadata"]
	if !ok {
		return nil, nil
	}
	if md, ok := raw.(object.Tree); ok && regularMetadata(md) {
		return nil, nil
	}
	data, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	var md metav1.ObjectMeta
	strict, err := kjson.UnmarshalStrict(data, &md)
	if err != nil {
		return nil, err
	}
	for _, problem := range strict {
		var f kjson.FieldError
		if errors.As(problem, &f) {
			unknown = append(unknown, "metadata."+f.FieldPath())
		}
	}
	t["metadata"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(&md)
	return unknown, err
}

// dropInvalidMetadata drops fields of the metadata that have the wrong type. Upstream does this with the result of
// a webhook.
func dropInvalidMetadata(t object.Tree) {
	if _, err := normalizeMetadata(t); err == nil {
		return
	}
	md, _ := t["metadata"].(object.Tree)
	for field, v := range md {
		if _, err := normalizeMetadata(object.Tree{"metadata": object.Tree{field: v}}); err != nil {
			delete(md, field)
		}
	}
	t["metadata"] = md
}

// regularMetadata normalizes md in place if all its fields have the usual form. If it returns false, md needs the
// slower code in normalizeMetadata.
func regularMetadata(md object.Tree) bool {
	for key, v := range md {
		ok, empty := true, v == nil
		switch key {
		case "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion":
			var s string
			s, ok = v.(string)
			empty = s == ""
		case "generation":
			var n int64
			n, ok = v.(int64)
			empty = n == 0
		case "deletionGracePeriodSeconds":
			_, ok = v.(int64)
		case "creationTimestamp", "deletionTimestamp":
			ok = canonicalTime(v)
		case "labels", "annotations":
			ok, empty = stringMap(v)
		case "finalizers":
			ok, empty = stringList(v)
		case "ownerReferences":
			ok, empty = regularList(v, regularOwner)
		case "managedFields":
			ok, empty = regularList(v, regularManagedFields)
		default:
			return false
		}
		if v != nil && !ok {
			return false
		}
		if v == nil || empty {
			delete(md, key)
		}
	}
	return true
}

// canonicalTime reports whether v is a time in the format that the server writes.
func canonicalTime(v any) bool {
	s, _ := v.(string)
	if len(s) != len("2006-01-02T15:04:05Z") {
		return false
	}
	_, err := time.Parse("2006-01-02T15:04:05Z", s)
	return err == nil
}

func stringMap(v any) (ok, empty bool) {
	m, ok := v.(object.Tree)
	for _, value := range m {
		if _, isString := value.(string); !isString {
			return false, false
		}
	}
	return ok, len(m) == 0
}

func stringList(v any) (ok, empty bool) {
	l, ok := v.([]any)
	for _, value := range l {
		if _, isString := value.(string); !isString {
			return false, false
		}
	}
	return ok, len(l) == 0
}

func regularList(v any, regular func(object.Tree) bool) (ok, empty bool) {
	l, ok := v.([]any)
	for _, item := range l {
		m, isTree := item.(object.Tree)
		if !isTree || !regular(m) {
			return false, false
		}
	}
	return ok, len(l) == 0
}

func regularOwner(m object.Tree) bool {
	required := 0
	for key, v := range m {
		switch key {
		case "apiVersion", "kind", "name", "uid":
			if _, ok := v.(string); !ok {
				return false
			}
			required++
		case "controller", "blockOwnerDeletion":
			if _, ok := v.(bool); !ok {
				return false
			}
		default:
			return false
		}
	}
	return required == 4
}

func regularManagedFields(m object.Tree) bool {
	for key, v := range m {
		switch key {
		case "manager", "operation", "apiVersion", "fieldsType", "subresource":
			if s, ok := v.(string); !ok || s == "" {
				return false
			}
		case "time":
			if !canonicalTime(v) {
				return false
			}
		case "fieldsV1":
			if _, ok := v.(object.Tree); !ok {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// WipeSystemFields removes the fields that only the server sets.
func WipeSystemFields(md object.Tree) {
	for _, key := range []string{
		"creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink",
	} {
		delete(md, key)
	}
}

// finalizerWarnings returns warnings for finalizer names that are not domain-qualified.
func finalizerWarnings(added []string) (warnings []string) {
	for _, name := range slices.Sorted(slices.Values(added)) {
		if strings.Contains(name, "/") || name == "kubernetes" ||
			name == metav1.FinalizerOrphanDependents || name == metav1.FinalizerDeleteDependents {
			continue
		}
		with := ""
		if strings.Contains(name, ".") {
			with = " including a path (/)"
		}
		warnings = append(warnings, `metadata.finalizers: "`+name+`": prefer a domain-qualified finalizer name`+with+
			` to avoid accidental conflicts with other finalizer writers`)
	}
	return warnings
}
