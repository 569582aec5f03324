package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// compare returns the differences between two states of a CRD that affect stored objects or clients.
func compare(before, after object.Tree) []change {
	c := &comparison{}
	c.names(specOf(before), specOf(after))
	c.conversion(before, after)
	old, now := versionsOf(before), versionsOf(after)
	for _, name := range slices.Sorted(maps.Keys(old)) {
		was := old[name].tree
		v, ok := now[name]
		if !ok {
			c.add(Breaking, "spec.versions",
				"version %s is removed: clients that use it fail, and it cannot be removed while "+
					"status.storedVersions contains it", name)
			continue
		}
		if was["served"] == true && v.tree["served"] != true {
			c.add(Breaking, v.path+".served", "version %s is no longer served: clients that use it fail", name)
		}
		c.subresources(v.path, was, v.tree)
		c.selectorsAndColumns(v.path, was, v.tree)
		c.schema(v.path+".schema.openAPIV3Schema", schemaOf(was), schemaOf(v.tree))
	}
	c.storage(before, after)
	return c.changes
}

type version struct {
	path string
	tree object.Tree
}

func versionsOf(crd object.Tree) map[string]version {
	all := map[string]version{}
	for i, t := range list(specOf(crd), "versions") {
		all[object.String(t, "name")] = version{fmt.Sprintf("spec.versions[%d]", i), t}
	}
	return all
}

func specOf(crd object.Tree) object.Tree { return child(crd, "spec") }

func schemaOf(version object.Tree) object.Tree {
	return child(child(version, "schema"), "openAPIV3Schema")
}

// child returns the object in a field, or nil.
func child(t object.Tree, key string) object.Tree {
	field, _ := t[key].(object.Tree)
	return field
}

// names compares the names of the kind and the scope of its objects.
func (c *comparison) names(old, now object.Tree) {
	for _, at := range []struct {
		path     string
		old, now object.Tree
		keys     []string
	}{
		{"spec", old, now, []string{"group", "scope"}},
		{"spec.names", child(old, "names"), child(now, "names"), []string{"kind", "listKind", "plural", "singular"}},
	} {
		for _, key := range at.keys {
			if was := at.old[key]; was != nil && !object.Equal(was, at.now[key]) {
				c.add(Breaking, at.path+"."+key, "clients that use the old %s fail; it was %s", key, formatValue(was))
			}
		}
	}
	for _, key := range []string{"shortNames", "categories"} {
		for _, name := range removed(object.Strings(child(old, "names"), key),
			object.Strings(child(now, "names"), key)) {
			c.add(Breaking, "spec.names."+key, "clients that use %s fail", name)
		}
	}
	if old["preserveUnknownFields"] == true && now["preserveUnknownFields"] != true {
		c.add(Breaking, "spec.preserveUnknownFields",
			"unknown fields are no longer preserved: they are dropped from stored objects")
	}
}

// removed returns the elements of was that are not in is.
func removed(was, is []string) []string {
	return slices.DeleteFunc(slices.Clone(was), func(s string) bool { return slices.Contains(is, s) })
}

// conversion compares the conversion between versions.
func (c *comparison) conversion(before, after object.Tree) {
	was, is := converterName(before), converterName(after)
	switch {
	case was == is || len(versionsOf(after)) < 2:
	case is == "None":
		c.add(Breaking, "spec.conversion",
			"objects are no longer converted: reads and writes at a version drop the fields that its schema does "+
				"not have; it was %s", was)
	default:
		c.add(Compatible, "spec.conversion",
			"reads and writes at a version other than the storage version need %s; it was %s", is, was)
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

// storage compares the storage versions. Without conversion, rewriting an object at the new storage version has
// the effects of a schema change.
func (c *comparison) storage(before, after object.Tree) {
	was, is := stored(before), stored(after)
	from, to := object.String(was.tree, "name"), object.String(is.tree, "name")
	if from == to || was.tree == nil || is.tree == nil {
		return
	}
	c.add(Compatible, is.path+".storage",
		"objects stay stored at %s until they are rewritten: run trellis migrate %s before %s is removed", from,
		object.Name(after), from)
	if converterName(after) == "None" {
		c.schema(is.path+".schema.openAPIV3Schema", schemaOf(was.tree), schemaOf(is.tree))
	}
}

func stored(crd object.Tree) version {
	for _, v := range versionsOf(crd) {
		if v.tree["storage"] == true {
			return v
		}
	}
	return version{}
}

// subresources compares the status and scale subresources of a version.
func (c *comparison) subresources(path string, before, after object.Tree) {
	old, now := child(before, "subresources"), child(after, "subresources")
	path += ".subresources"
	_, had := old["status"]
	_, has := now["status"]
	switch {
	case had && !has:
		c.add(Breaking, path, "the status subresource is removed: clients that write /status fail")
	case has && !had:
		c.add(Breaking, path+".status", "the status subresource is new: writes of the object itself ignore status, "+
			"and only /status writes it")
	}
	was, is := child(old, "scale"), child(now, "scale")
	switch {
	case was != nil && is == nil:
		c.add(Breaking, path, "the scale subresource is removed: clients that use /scale fail")
		return
	case was == nil && is != nil:
		c.replicas(path+".scale", is, schemaOf(after))
		return
	}
	for _, key := range []string{"specReplicasPath", "statusReplicasPath", "labelSelectorPath"} {
		switch a, b := was[key], is[key]; {
		case object.Equal(a, b):
		case a == nil:
			c.add(Compatible, path+".scale."+key, "%s is new", key)
		default:
			c.add(Breaking, path+".scale."+key, "/scale reads and writes another field; it was %s", formatValue(a))
		}
	}
}

// replicas reports that a new scale subresource rejects objects with negative numbers, if the schema allows these.
func (c *comparison) replicas(path string, scale, schema object.Tree) {
	for _, key := range []string{"specReplicasPath", "statusReplicasPath"} {
		s := schema
		for _, name := range strings.Split(strings.TrimPrefix(object.String(scale, key), "."), ".") {
			s = child(child(s, "properties"), name)
		}
		if least, ok := number(s["minimum"]); !ok || least < 0 {
			c.add(Breaking, path+"."+key,
				"objects with a negative number there cannot be updated, and the schema allows it: it has no "+
					"minimum of 0")
		}
	}
}

// selectorsAndColumns compares the selectable fields and the printer columns.
func (c *comparison) selectorsAndColumns(path string, before, after object.Tree) {
	for _, l := range []struct {
		key, by, lost string
		effect        Effect
	}{
		{"selectableFields", "jsonPath", "clients that select by %s fail", Breaking},
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
