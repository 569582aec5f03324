package schema

import (
	"maps"
	"slices"
	"strings"
)

// LostField is a field of one schema that objects of another cannot hold.
type LostField struct {
	Path   string // ".spec.ports[*].name"
	Reason string
}

// maxLosses bounds how many are told.
const maxLosses = 20

// LostFields are the fields of from that are gone when an object is carried over to schema to: they are neither carried
// over, because to has the same field of a type that holds all that from's may be, nor among those that something
// reads. The fields set are not carried over. metadata is no matter here. Fields are paths of names.
func LostFields(from, to *Schema, set, read [][]string) []LostField {
	if from.root == nil || to.root == nil {
		return []LostField{{".", "a version has no schema"}}
	}
	w := losses{set: set, read: read}
	if w.keeps(from.root, to.root, nil) {
		w.properties(from.root, to.root, nil)
	}
	return w.found
}

type losses struct {
	set, read [][]string
	found     []LostField
}

func (w *losses) add(path []string, why string) {
	if len(w.found) < maxLosses {
		w.found = append(w.found, LostField{PathText(path), why})
	}
}

// PathText is a path of field names as people write it: ".spec.host".
func PathText(path []string) string {
	return "." + strings.ReplaceAll(strings.Join(path, "."), ".[*]", "[*]")
}

// isUnder reports that path is one of paths, or lies below one.
func isUnder(path []string, paths [][]string) bool {
	return slices.ContainsFunc(paths, func(p []string) bool { return len(p) <= len(path) && slices.Equal(p, path[:len(p)]) })
}

// value looks at one value of from that would be dst, nil where there is no such field.
func (w *losses) value(src, dst *node, path []string) {
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

// keeps compares the values themselves.
func (w *losses) keeps(src, dst *node, path []string) bool {
	why := ""
	switch {
	case dst.types == 0 && dst.preserve:
		return true
	case src.types == 0 && dst.types != 0:
		why = "may be of any type, but is of type " + typeText(dst) + " in the other version"
	case src.types&^dst.types != 0 && (src.types != isInteger || dst.types != isNumber):
		why = "is of type " + typeText(src) + ", but of type " + typeText(dst) + " in the other version"
	case src.nullable && !dst.nullable:
		why = "may be null, but not in the other version"
	case src.preserve && !dst.preserve:
		why = "may have unknown fields, but not in the other version"
	case src.embedded && !dst.embedded:
		why = "is a resource of its own, but not in the other version"
	}
	if why != "" {
		w.add(path, why)
	}
	return why == ""
}

// below compares what is in values that both versions have.
func (w *losses) below(src, dst *node, path []string) {
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

func (w *losses) properties(src, dst *node, path []string) {
	for _, name := range slices.Sorted(maps.Keys(src.properties)) {
		if len(path) == 0 && isTypeOrMeta(name) {
			continue
		}
		to := dst.child(name)
		if to == nil && (dst.preserve || dst.additional != nil && dst.additional.allows && dst.additional.schema == nil) {
			continue
		}
		w.value(src.properties[name], to, append(slices.Clip(path), name))
	}
}
