package scales

import (
	"cmp"
	"maps"
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// ManagedFields manages the fields of a Scale. The replicas are the only field that a Scale and its object
// share. As in upstream's scale handler, the ownership of this field is copied between them (KEP-555).
func ManagedFields() merge.ManagedFields {
	return merge.ManagedFields{
		APIVersion:  Version.APIVersion,
		Kind:        Version.Definition.Names.Kind,
		Subresource: "scale",
		Parseable:   func(string) (typed.ParseableType, bool) { return typed.DeducedParseableType, true },
		Convert:     func(t object.Tree, _ string) (object.Tree, error) { return t, nil },
	}
}

// replicasPath returns the path of the replicas at a version of the kind. It returns nil if the version has no
// scale subresource. known is false if the kind no longer has the version.
func replicasPath(d *resource.Definition, apiVersion string) (path []string, known bool) {
	v := d.Version(apiVersion)
	if v == nil || v.Scale == nil {
		return nil, v != nil
	}
	return v.Scale.SpecReplicas, true
}

// Owners selects the entries of an object's managedFields that own the replicas. It converts them to entries
// of the object's Scale.
func Owners(d *resource.Definition, entries []any) (out []any) {
	for _, e := range entries {
		entry, _ := e.(object.Tree)
		path, _ := replicasPath(d, object.String(entry, "apiVersion"))
		if path != nil && owns(entry["fieldsV1"], path) {
			out = append(out, entryOwning(entry, Version.APIVersion, []string{"spec", "replicas"}))
		}
	}
	return out
}

// ParentOwners returns the managedFields of an object after a change of its Scale's managedFields. If a manager has
// lost or gained the replicas in the Scale, the same happens in the object.
func ParentOwners(v *resource.Version, entries, scale []any) (out []any) {
	owners := map[string]object.Tree{}
	for _, e := range scale {
		if entry, _ := e.(object.Tree); owns(entry["fieldsV1"], []string{"spec", "replicas"}) {
			owners[managerKey(entry)] = entry
		}
	}
	for _, e := range entries {
		entry, _ := e.(object.Tree)
		path, known := replicasPath(v.Definition, object.String(entry, "apiVersion"))
		manager := managerKey(entry)
		switch {
		case !known:
		case path == nil || !owns(entry["fieldsV1"], path):
			out = append(out, e)
		case owners[manager] != nil:
			out = append(out, e)
			delete(owners, manager)
		default:
			if rest := removePath(entry["fieldsV1"], path); len(rest) > 0 {
				reduced := maps.Clone(entry)
				reduced["fieldsV1"] = rest
				out = append(out, reduced)
			}
		}
	}
	for _, entry := range owners {
		out = append(out, entryOwning(entry, v.APIVersion, v.Scale.SpecReplicas))
	}
	slices.SortStableFunc(out, func(a, b any) int {
		x, _ := a.(object.Tree)
		y, _ := b.(object.Tree)
		for _, key := range []string{"operation", "time", "manager", "apiVersion", "subresource"} {
			if c := cmp.Compare(object.String(x, key), object.String(y, key)); c != 0 {
				return c
			}
		}
		return 0
	})
	return out
}

// managerKey returns a key that identifies an entry of managedFields within its object.
func managerKey(entry object.Tree) string {
	return object.String(entry, "operation") + " " + object.String(entry, "subresource") + " " +
		object.String(entry, "manager")
}

// entryOwning returns a copy of entry with the given apiVersion. The copy owns only path.
func entryOwning(entry object.Tree, apiVersion string, path []string) object.Tree {
	out := maps.Clone(entry)
	var fields any = object.Tree{}
	for _, name := range slices.Backward(path) {
		fields = object.Tree{"f:" + name: fields}
	}
	out["apiVersion"], out["fieldsV1"] = apiVersion, fields
	return out
}

// owns reports whether a field set (FieldsV1) contains path itself. Fields below path do not suffice.
func owns(fields any, path []string) bool {
	for _, name := range path {
		set, _ := fields.(object.Tree)
		fields = set["f:"+name]
	}
	set, ok := fields.(object.Tree)
	return ok && (len(set) == 0 || set["."] != nil)
}

// removePath returns a copy of a field set without path. The field set must contain path. The result is empty if
// nothing remains.
func removePath(fields any, path []string) object.Tree {
	set, _ := fields.(object.Tree)
	out, key := maps.Clone(set), "f:"+path[0]
	below, _ := set[key].(object.Tree)
	switch {
	case len(path) > 1 && len(below) > 0:
		below = removePath(below, path[1:])
	default:
		below = maps.Clone(below)
		delete(below, ".")
	}
	switch {
	case len(below) == 0:
		delete(out, key)
	case len(below) == 1 && below["."] != nil:
		out[key] = object.Tree{}
	default:
		out[key] = below
	}
	return out
}
