package crd

import (
	"fmt"
	"slices"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// crdWarnings returns warnings about formats that are not validated and sets that cannot be merged. It omits the
// warnings that the old CRD already has.
func crdWarnings(obj, old object.Tree) []string {
	if old != nil && object.Equal(obj["spec"], old["spec"]) {
		return nil
	}
	found, before := schemaWarnings(obj), schemaWarnings(old)
	return slices.DeleteFunc(found, func(w string) bool { return slices.Contains(before, w) })
}

func schemaWarnings(crd object.Tree) []string {
	var formats, sets []string
	add := func(to *[]string, text string) {
		if !slices.Contains(*to, text) {
			*to = append(*to, text)
		}
	}
	for _, v := range object.ListAt(crd, "spec", "versions") {
		version, _ := v.(object.Tree)
		root := object.TreeAt(version, "schema", "openAPIV3Schema")
		if !schema.AnyTree(root, hasWarning) { // most CRDs have no warning
			continue
		}
		s, err := schema.Parse(object.AppendJSON(nil, root), false)
		if err != nil {
			continue
		}
		for n := range s.Root.All() {
			if isUnknownFormat(n.WrittenType(), n.Format) {
				add(&formats, fmt.Sprintf("unrecognized format %q", n.Format))
			}
			if n.ListType == "set" && n.Items != nil && isCompound(n.Items.WrittenType()) {
				add(&sets, fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by "+
					"server-side apply or CEL validation rules", n.Items.Type))
			}
		}
	}
	slices.Sort(sets)
	return append(formats, sets...)
}

// hasWarning reports whether a schema, without those below it, has a warning.
func hasWarning(s object.Tree) bool {
	return isUnknownFormat(object.String(s, "type"), object.String(s, "format")) ||
		s["x-kubernetes-list-type"] == "set" && isCompound(object.StringAt(s, "items", "type"))
}

// isUnknownFormat reports whether the server does not validate the format for values of a type.
func isUnknownFormat(typ, format string) bool {
	return format != "" && schema.FormatOf(&schema.Node{Type: typ, Format: format}) == 0
}

// isCompound reports whether items of a type cannot be merged as items of a set.
func isCompound(typ string) bool { return typ == "object" || typ == "array" }
