package schema

import (
	"maps"
	"slices"
	"strings"
)

// LostField describes a field of one schema that is lost when an object is converted to another schema.
type LostField struct {
	Path   string // such as ".spec.ports[*].name"
	Reason string
}

// maxLostFields limits the number of fields that LostFields returns.
const maxLostFields = 20

// LostFields returns the fields of schema from that are lost when an object is converted to schema to. A field is
// kept if schema to has the same field with a type that accepts all its values. It is also kept if it is in read,
// the fields that expressions read. Fields in set are overwritten by expressions and are not copied. metadata is
// ignored. set and read contain paths of field names.
func LostFields(from, to *Schema, set, read [][]string) []LostField {
	if from.root == nil || to.root == nil {
		return []LostField{{".", "a version has no schema"}}
	}
	w := lossFinder{set: set, read: read}
	if w.keeps(from.root, to.root, nil) {
		w.properties(from.root, to.root, nil)
	}
	return w.found
}

type lossFinder struct {
	set, read [][]string
	found     []LostField
}

func (w *lossFinder) add(path []string, reason string) {
	if len(w.found) < maxLostFields {
		w.found = append(w.found, LostField{PathText(path), reason})
	}
}

// PathText formats a path of field names, such as ".spec.host".
func PathText(path []string) string {
	return "." + strings.ReplaceAll(strings.Join(path, "."), ".[*]", "[*]")
}

// isUnder reports whether path is one of paths or is below one of them.
func isUnder(path []string, paths [][]string) bool {
	return slices.ContainsFunc(paths, func(p []string) bool {
		return len(p) <= len(path) &&
			slices.Equal(p, path[:len(p)])
	})
}

// value compares src with dst, the schema of the same value in the other version. dst is nil if the field does not
// exist.
func (w *lossFinder) value(src, dst *node, path []string) {
	if src == nil || isUnder(path, w.read) {
		return
	}
	replaced := isUnder(path, w.set)
	switch {
	case (dst == nil || replaced) && src.types == isObject && len(src.properties) > 0:
		w.properties(src, &node{}, path)
	case replaced:
		w.add(path, "is replaced by an expression that does not read it")
	case dst == nil:
		w.add(path, "is not in the other version, and no expression reads it")
	case w.keeps(src, dst, path):
		w.below(src, dst, path)
	}
}

// keeps reports whether dst accepts all values of src, without their fields and items. It records the reason if
// not.
func (w *lossFinder) keeps(src, dst *node, path []string) bool {
	reason := ""
	switch {
	case dst.types == 0 && dst.preserve:
		return true
	case src.types == 0 && dst.types != 0:
		reason = "may be of any type, but is of type " + typeText(dst) + " in the other version"
	case src.types&^dst.types != 0 && (src.types != isInteger || dst.types != isNumber):
		reason = "is of type " + typeText(src) + ", but of type " + typeText(dst) + " in the other version"
	case src.nullable && !dst.nullable:
		reason = "may be null, but not in the other version"
	case src.preserve && !dst.preserve:
		reason = "may have unknown fields, but not in the other version"
	case src.embedded && !dst.embedded:
		reason = "is an embedded resource, but not in the other version"
	}
	if reason != "" {
		w.add(path, reason)
	}
	return reason == ""
}

// below compares the fields and items of a value that exists in both versions.
func (w *lossFinder) below(src, dst *node, path []string) {
	each := append(slices.Clip(path), "[*]")
	switch {
	case src.items != nil:
		w.value(src.items, dst.items, each)
	case len(src.properties) > 0:
		w.properties(src, dst, path)
	case src.additional == nil || !src.additional.allows || dst.preserve:
	case dst.additional == nil || !dst.additional.allows || len(dst.properties) > 0:
		w.add(each, "is not in the other version, and no expression reads it")
	case src.additional.schema != nil && dst.additional.schema != nil:
		w.value(src.additional.schema, dst.additional.schema, each)
	case dst.additional.schema != nil:
		w.add(each, "may be anything, but not in the other version")
	}
}

func (w *lossFinder) properties(src, dst *node, path []string) {
	for _, name := range slices.Sorted(maps.Keys(src.properties)) {
		if len(path) == 0 && isTypeOrMeta(name) {
			continue
		}
		to := dst.child(name)
		if to == nil && (dst.preserve || dst.additional != nil && dst.additional.allows &&
			dst.additional.schema == nil) {
			continue
		}
		w.value(src.properties[name], to, append(slices.Clip(path), name))
	}
}
