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

// LostFields returns the fields that are lost when an object is converted from one schema to the other. The parameters
// computed and read contain the paths of the fields that expressions compute and read. A field that an expression reads
// is kept. Any other field is kept if no expression computes it and the new schema has the field with a type that
// accepts all its values. The metadata is ignored.
func LostFields(from, to *Schema, computed, read [][]string) []LostField {
	if from.root == nil || to.root == nil {
		return []LostField{{".", "a version has no schema"}}
	}
	w := lossFinder{computed: computed, read: read}
	if w.keeps(from.root, to.root, nil) {
		w.properties(from.root, to.root, nil)
	}
	return w.found
}

type lossFinder struct {
	computed, read [][]string
	found          []LostField
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

// value compares src with dst, which are the schemas of one value in the source and the target version. dst is nil if
// the target version does not have the field.
func (w *lossFinder) value(src, dst *node, path []string) {
	if src == nil || isUnder(path, w.read) {
		return
	}
	replaced := isUnder(path, w.computed)
	switch {
	case (dst == nil || replaced) && src.types == isObject && len(src.properties) > 0:
		w.properties(src, &node{}, path)
	case replaced:
		w.add(path, "the field is replaced by an expression that does not read it")
	case dst == nil:
		w.add(path, "the field is not in the target version, and no expression reads it")
	case w.keeps(src, dst, path):
		w.below(src, dst, path)
	}
}

// keeps reports whether dst accepts all values of src. It does not compare their fields and items. If the result is
// false, keeps records the reason.
func (w *lossFinder) keeps(src, dst *node, path []string) bool {
	reason := ""
	switch {
	case dst.types == 0 && dst.preserve:
		return true
	case src.types == 0 && dst.types != 0:
		reason = "the value can be of any type, but the target version requires the type " + typeText(dst)
	case src.types&^dst.types != 0 && (src.types != isInteger || dst.types != isNumber):
		reason = "the value is of type " + typeText(src) + ", but the target version requires the type " + typeText(dst)
	case src.nullable && !dst.nullable:
		reason = "the value can be null, but the target version does not allow null"
	case src.preserve && !dst.preserve:
		reason = "the value can have unknown fields, but the target version drops them"
	case src.embedded && !dst.embedded:
		reason = "the value is an embedded resource, but the target version does not keep its metadata"
	}
	if reason != "" {
		w.add(path, reason)
	}
	return reason == ""
}

// below compares the fields and items of a value that both versions have.
func (w *lossFinder) below(src, dst *node, path []string) {
	each := append(slices.Clip(path), "[*]")
	switch {
	case src.items != nil:
		w.value(src.items, dst.items, each)
	case len(src.properties) > 0:
		w.properties(src, dst, path)
	case src.additional == nil || !src.additional.allows || dst.preserve:
	case dst.additional == nil || !dst.additional.allows || len(dst.properties) > 0:
		w.add(each, "the field is not in the target version, and no expression reads it")
	case src.additional.schema != nil && dst.additional.schema != nil:
		w.value(src.additional.schema, dst.additional.schema, each)
	case dst.additional.schema != nil:
		w.add(each, "the field can have any value, but the target version restricts its values")
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
