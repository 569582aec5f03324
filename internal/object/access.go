package object

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"
)

// Metadata returns the metadata of t without copying it. It returns nil if t has no metadata or the metadata is not
// an object. t may be nil.
func Metadata(t Tree) Tree {
	m, _ := t[keyMetadata].(Tree)
	return m
}

// EnsureMetadata returns the metadata of t. It sets the metadata to an empty object if Metadata returns nil.
func EnsureMetadata(t Tree) Tree { return EnsureTree(t, keyMetadata) }

// String returns the string at key, or "" if there is no string.
func String(t Tree, key string) string {
	s, _ := t[key].(string)
	return s
}

// SetString sets key, or removes it if value is empty.
func SetString(t Tree, key, value string) {
	if value == "" {
		delete(t, key)
		return
	}
	t[key] = value
}

// Int64 returns the integer at key, or 0 if there is no integer.
func Int64(t Tree, key string) int64 {
	i, _ := t[key].(int64)
	return i
}

// Name returns metadata.name.
func Name(t Tree) string { return String(Metadata(t), "name") }

// Namespace returns metadata.namespace.
func Namespace(t Tree) string { return String(Metadata(t), "namespace") }

// UID returns metadata.uid.
func UID(t Tree) types.UID { return types.UID(String(Metadata(t), "uid")) }

// ResourceVersion returns metadata.resourceVersion.
func ResourceVersion(t Tree) string { return String(Metadata(t), keyResourceVersion) }

// SetResourceVersion sets metadata.resourceVersion, or removes it if rv is empty.
func SetResourceVersion(t Tree, rv string) {
	if rv == "" {
		delete(Metadata(t), keyResourceVersion)
		return
	}
	EnsureMetadata(t)[keyResourceVersion] = rv
}

// Generation returns metadata.generation.
func Generation(t Tree) int64 { return Int64(Metadata(t), "generation") }

// SetGeneration sets metadata.generation, or removes it if it is 0.
func SetGeneration(t Tree, generation int64) {
	if generation == 0 {
		delete(Metadata(t), "generation")
		return
	}
	EnsureMetadata(t)["generation"] = generation
}

// DeletionTimestamp returns the text of metadata.deletionTimestamp, or "".
func DeletionTimestamp(t Tree) string { return String(Metadata(t), "deletionTimestamp") }

// Strings returns the list of strings at key. It returns nil if the value is not a list or has an element that is
// not a string.
func Strings(t Tree, key string) []string { return stringList(t[key]) }

func stringList(v any) []string {
	list, ok := v.([]any)
	if !ok {
		return nil
	}
	out := make([]string, len(list))
	for i := range list {
		if out[i], ok = list[i].(string); !ok {
			return nil
		}
	}
	return out
}

// SetStrings sets the list at key, or removes it if values is nil.
func SetStrings(t Tree, key string, values []string) {
	if values == nil {
		delete(t, key)
		return
	}
	list := make([]any, len(values))
	for i := range values {
		list[i] = values[i]
	}
	t[key] = list
}

// Finalizers returns metadata.finalizers.
func Finalizers(t Tree) []string { return Strings(Metadata(t), "finalizers") }

// SetFinalizers sets metadata.finalizers, or removes the field if finalizers is empty.
func SetFinalizers(t Tree, finalizers []string) {
	if len(finalizers) == 0 {
		delete(Metadata(t), "finalizers")
		return
	}
	SetStrings(EnsureMetadata(t), "finalizers", finalizers)
}

// StringMap returns the map of strings at key. It returns nil if the value is not an object or has a member that is
// not a string.
func StringMap(t Tree, key string) map[string]string { return stringMap(t[key]) }

func stringMap(v any) map[string]string {
	m, ok := v.(Tree)
	if !ok {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		if out[k], ok = v.(string); !ok {
			return nil
		}
	}
	return out
}

// Annotation returns the value of an annotation and reports whether it is set.
func Annotation(t Tree, key string) (string, bool) {
	m, _ := Metadata(t)["annotations"].(Tree)
	s, ok := m[key].(string)
	return s, ok
}

// SetMapEntry sets one entry of metadata[field], a map of strings such as "labels" or "annotations". It creates the
// map if necessary.
func SetMapEntry(t Tree, field, key, value string) {
	EnsureTree(EnsureMetadata(t), field)[key] = value
}

// ShallowCopy copies t and its metadata, but shares the values in them.
func ShallowCopy(t Tree) Tree {
	out := maps.Clone(t)
	if md := Metadata(t); md != nil {
		out["metadata"] = maps.Clone(md)
	}
	return out
}

// CopyField sets a field of t to its value in from. If from does not have the field, CopyField deletes it from t.
func CopyField(t, from Tree, key string) {
	if v, ok := from[key]; ok {
		t[key] = v
	} else {
		delete(t, key)
	}
}
