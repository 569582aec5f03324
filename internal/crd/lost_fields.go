package crd

import (
	"maps"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
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
func LostFields(from, to *schema.Schema, computed, read [][]string) []LostField {
	if from.Root == nil || to.Root == nil {
		return []LostField{{".", "a version has no schema"}}
	}
	w := lossFinder{computed: computed, read: read}
	if w.keeps(from.Root, to.Root, nil) {
		w.properties(from.Root, to.Root, nil)
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
func (w *lossFinder) value(src, dst *schema.Node, path []string) {
	if src == nil || isUnder(path, w.read) {
		return
	}
	replaced := isUnder(path, w.computed)
	switch {
	case (dst == nil || replaced) && src.Types == schema.Object && len(src.Properties) > 0:
		w.properties(src, &schema.Node{}, path)
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
func (w *lossFinder) keeps(src, dst *schema.Node, path []string) bool {
	reason := ""
	switch {
	case dst.Types == 0 && dst.Preserve:
		return true
	case src.Types == 0 && dst.Types != 0:
		reason = "the value can be of any type, but the target version requires the type " + schema.TypeText(dst)
	case src.Types&^dst.Types != 0 && (src.Types != schema.Integer || dst.Types != schema.Number):
		reason = "the value is of type " + schema.TypeText(src) + ", but the target version requires the type " +
			schema.TypeText(dst)
	case src.Nullable && !dst.Nullable:
		reason = "the value can be null, but the target version does not allow null"
	case src.Preserve && !dst.Preserve:
		reason = "the value can have unknown fields, but the target version drops them"
	case src.Embedded && !dst.Embedded:
		reason = "the value is an embedded resource, but the target version does not keep its metadata"
	}
	if reason != "" {
		w.add(path, reason)
	}
	return reason == ""
}

// below compares the fields and items of a value that both versions have.
func (w *lossFinder) below(src, dst *schema.Node, path []string) {
	each := append(slices.Clip(path), "[*]")
	switch {
	case src.Items != nil:
		w.value(src.Items, dst.Items, each)
	case len(src.Properties) > 0:
		w.properties(src, dst, path)
	case src.Additional == nil || !src.Additional.Allows || dst.Preserve:
	case dst.Additional == nil || !dst.Additional.Allows || len(dst.Properties) > 0:
		w.add(each, "the field is not in the target version, and no expression reads it")
	case src.Additional.Schema != nil && dst.Additional.Schema != nil:
		w.value(src.Additional.Schema, dst.Additional.Schema, each)
	case dst.Additional.Schema != nil:
		w.add(each, "the field can have any value, but the target version restricts its values")
	}
}

func (w *lossFinder) properties(src, dst *schema.Node, path []string) {
	for _, name := range slices.Sorted(maps.Keys(src.Properties)) {
		if len(path) == 0 && schema.IsTypeOrMeta(name) {
			continue
		}
		to := dst.Child(name)
		if to == nil && (dst.Preserve || dst.Additional != nil && dst.Additional.Allows &&
			dst.Additional.Schema == nil) {
			continue
		}
		w.value(src.Properties[name], to, append(slices.Clip(path), name))
	}
}
