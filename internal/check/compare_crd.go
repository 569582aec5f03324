package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// compare returns the differences between two states of a CRD that affect stored objects or clients.
func compare(before, after object.Tree) []change {
	c := &comparison{}
	c.names(specOf(before), specOf(after))
	old, now := versionsOf(before), versionsOf(after)
	from, to := converterName(before), converterName(after)
	c.conversion(from, to, len(now))
	for _, name := range slices.Sorted(maps.Keys(old)) {
		was := old[name]
		v, ok := now[name]
		if !ok {
			c.add(Breaking, "spec.versions",
				"version %s is removed: clients that use it fail, and the update of the CustomResourceDefinition "+
					"fails while status.storedVersions contains the version", name)
			continue
		}
		if was.tree["served"] == true && v.tree["served"] != true {
			c.add(Breaking, v.path+".served", "version %s is no longer served: clients that use it fail", name)
		}
		c.subresources(was, v)
		c.selectorsAndColumns(v.path, was.tree, v.tree)
		c.schema(v.root.path, was.root.Node, v.root.Node)
	}
	c.storage(stored(old), stored(now), object.Name(after), to == "None")
	return c.changes
}

type version struct {
	path string
	tree object.Tree
	root *place // has no Node if the version has no valid schema
}

func versionsOf(crd object.Tree) map[string]version {
	all := map[string]version{}
	for i, t := range list(specOf(crd), "versions") {
		path := fmt.Sprintf("spec.versions[%d]", i)
		root := &place{path: path + ".schema.openAPIV3Schema"}
		s, err := schema.Parse(object.AppendJSON(nil, child(t, "schema")["openAPIV3Schema"]), false)
		if err == nil {
			root.Node = s.Root
		}
		all[object.String(t, "name")] = version{path, t, root}
	}
	return all
}

// list returns the objects in the list at key.
func list(t object.Tree, key string) (all []object.Tree) {
	values, _ := t[key].([]any)
	for _, v := range values {
		item, _ := v.(object.Tree)
		all = append(all, item)
	}
	return all
}

func specOf(crd object.Tree) object.Tree { return child(crd, "spec") }

// child returns the object in the field key of t. It returns nil if the field has no object.
func child(t object.Tree, key string) object.Tree {
	field, _ := t[key].(object.Tree)
	return field
}

// names compares the group, the scope and the names of the kind.
func (c *comparison) names(old, now object.Tree) {
	fields := func(path string, old, now object.Tree, keys ...string) {
		for _, key := range keys {
			if was := old[key]; was != nil && !object.Equal(was, now[key]) {
				c.add(Breaking, path+"."+key, "%s was %s: clients that use the old value fail", key,
					object.AppendJSON(nil, was))
			}
		}
	}
	fields("spec", old, now, "group", "scope")
	oldNames, newNames := child(old, "names"), child(now, "names")
	fields("spec.names", oldNames, newNames, "kind", "listKind", "plural", "singular")
	for _, key := range []string{"shortNames", "categories"} {
		for _, name := range removed(object.Strings(oldNames, key), object.Strings(newNames, key)) {
			c.add(Breaking, "spec.names."+key, "%s is removed: clients that use this name fail", name)
		}
	}
	if old["preserveUnknownFields"] == true && now["preserveUnknownFields"] != true {
		c.add(Breaking, "spec.preserveUnknownFields",
			"unknown fields are no longer preserved: stored objects lose them")
	}
}

// conversion compares the conversion between versions.
func (c *comparison) conversion(from, to string, versions int) {
	switch {
	case from == to || versions < 2:
	case to == "None":
		c.add(Breaking, "spec.conversion",
			"conversion was %s and is now None: reads and writes drop the fields that the schema of the requested "+
				"version does not have", from)
	default:
		c.add(Compatible, "spec.conversion",
			"conversion was %s: reads and writes at a version other than the storage version now need %s", from, to)
	}
}

// converterName returns a description of the conversion of a CRD.
func converterName(crd object.Tree) string {
	strategy := object.String(child(specOf(crd), "conversion"), "strategy")
	switch {
	case strategy == "Webhook":
		return "the webhook"
	case object.String(child(child(crd, "metadata"), "annotations"), resource.ConversionAnnotation) != "":
		return "the annotation " + resource.ConversionAnnotation
	}
	return "None"
}

// storage compares the storage versions. If objects are not converted, a change of the storage version affects them
// like a change of the schema.
func (c *comparison) storage(was, is version, crd string, unconverted bool) {
	from, to := object.String(was.tree, "name"), object.String(is.tree, "name")
	if from == to || was.tree == nil || is.tree == nil {
		return
	}
	c.add(Compatible, is.path+".storage",
		"objects stay stored at version %s until they are rewritten: run trellis migrate %s before the version is "+
			"removed", from, crd)
	if unconverted {
		c.schema(is.root.path, was.root.Node, is.root.Node)
	}
}

func stored(versions map[string]version) version {
	for _, v := range versions {
		if v.tree["storage"] == true {
			return v
		}
	}
	return version{}
}

// subresources compares the status and scale subresources of a version.
func (c *comparison) subresources(before, after version) {
	old, now := child(before.tree, "subresources"), child(after.tree, "subresources")
	path := after.path + ".subresources"
	_, had := old["status"]
	_, has := now["status"]
	switch {
	case had && !has:
		c.add(Breaking, path, "the status subresource is removed: clients that write /status fail")
	case has && !had:
		c.add(Breaking, path+".status",
			"the status subresource is new: only writes of /status change the status of an object")
	}
	was, is := child(old, "scale"), child(now, "scale")
	switch {
	case was != nil && is == nil:
		c.add(Breaking, path, "the scale subresource is removed: clients that use /scale fail")
		return
	case was == nil && is != nil:
		c.replicas(path+".scale", is, after.root.Node)
		return
	}
	for _, key := range []string{"specReplicasPath", "statusReplicasPath", "labelSelectorPath"} {
		switch a, b := was[key], is[key]; {
		case object.Equal(a, b):
		case a == nil:
			c.add(Compatible, path+".scale."+key, "%s is new", key)
		default:
			c.add(Breaking, path+".scale."+key, "%s was %s: /scale now uses another field", key,
				object.AppendJSON(nil, a))
		}
	}
}

// replicas reports a new scale subresource whose replicas fields can be negative according to the schema. The server
// rejects objects with a negative number in such a field.
func (c *comparison) replicas(path string, scale object.Tree, root *schema.Node) {
	for _, key := range []string{"specReplicasPath", "statusReplicasPath"} {
		n := root
		for _, name := range strings.Split(strings.TrimPrefix(object.String(scale, key), "."), ".") {
			if n != nil {
				n = n.Properties[name]
			}
		}
		if n == nil || n.Checked().Minimum == nil || *n.Checked().Minimum < 0 {
			c.add(Breaking, path+"."+key,
				"the schema of the field has no minimum of 0: objects with a negative number in the field cannot be "+
					"updated")
		}
	}
}

// selectorsAndColumns compares the selectable fields and the printer columns.
func (c *comparison) selectorsAndColumns(path string, before, after object.Tree) {
	for _, l := range []struct {
		key, by, lost string
		effect        Effect
	}{
		{"selectableFields", "jsonPath", "%s is removed: clients that select by this field fail", Breaking},
		{"additionalPrinterColumns", "name", "the column %s is no longer shown", Compatible},
	} {
		names := func(t object.Tree) (all []string) {
			for _, f := range list(t, l.key) {
				all = append(all, object.String(f, l.by))
			}
			return all
		}
		for _, name := range removed(names(before), names(after)) {
			c.add(l.effect, path+"."+l.key, l.lost, name)
		}
	}
}
