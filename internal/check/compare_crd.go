package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// compare lists what differs between two states of a CRD and matters to stored objects and to clients.
func compare(before, after object.Tree) []change {
	c := &comparison{}
	c.names(specOf(before), specOf(after))
	c.conversion(before, after)
	old, now := versionsOf(before), versionsOf(after)
	for _, name := range slices.Sorted(maps.Keys(old)) {
		was := old[name].tree
		v, ok := now[name]
		if !ok {
			c.add(Breaking, "spec.versions", "version %s is gone: clients that use it fail, and it cannot go while status.storedVersions has it", name)
			continue
		}
		if was["served"] == true && v.tree["served"] != true {
			c.add(Breaking, v.path+".served", "version %s is no longer served: clients that use it fail", name)
		}
		c.subresources(v.path, was, v.tree)
		c.lookups(v.path, was, v.tree)
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

// child is the object in a field, nil if there is none.
func child(t object.Tree, key string) object.Tree {
	field, _ := t[key].(object.Tree)
	return field
}

// names compares what a kind is called and where its objects are.
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
				c.add(Breaking, at.path+"."+key, "clients that use the old %s fail; it was %s", key, shown(was))
			}
		}
	}
	for _, key := range []string{"shortNames", "categories"} {
		for _, name := range gone(object.Strings(child(old, "names"), key), object.Strings(child(now, "names"), key)) {
			c.add(Breaking, "spec.names."+key, "clients that use %s fail", name)
		}
	}
	if old["preserveUnknownFields"] == true && now["preserveUnknownFields"] != true {
		c.add(Breaking, "spec.preserveUnknownFields", "unknown fields are no longer kept: they are dropped from stored objects")
	}
}

// gone are the elements of was that is does not have.
func gone(was, is []string) []string {
	return slices.DeleteFunc(slices.Clone(was), func(s string) bool { return slices.Contains(is, s) })
}

// conversion compares how objects get from one version to another.
func (c *comparison) conversion(before, after object.Tree) {
	was, is := converter(before), converter(after)
	switch {
	case was == is || len(versionsOf(after)) < 2:
	case is == "None":
		c.add(Breaking, "spec.conversion", "objects are no longer converted: fields that a version does not know are dropped from what it shows and writes; it was %s", was)
	default:
		c.add(Compatible, "spec.conversion", "objects read or written at another version than they are stored at need %s; it was %s", is, was)
	}
}

// converter names what converts the objects of a CRD.
func converter(crd object.Tree) string {
	strategy := object.String(child(specOf(crd), "conversion"), "strategy")
	switch {
	case strategy == "Webhook":
		return "the webhook"
	case object.String(child(child(crd, "metadata"), "annotations"), resource.ConversionAnnotation) != "":
		return "the annotation " + resource.ConversionAnnotation
	}
	return "None"
}

// storage compares the versions that objects are stored at. Without a conversion, what is written again at the
// new one is as if the schema had changed.
func (c *comparison) storage(before, after object.Tree) {
	was, is := stored(before), stored(after)
	from, to := object.String(was.tree, "name"), object.String(is.tree, "name")
	if from == to || was.tree == nil || is.tree == nil {
		return
	}
	c.add(Compatible, is.path+".storage", "objects stay stored at %s until they are written again: run trellis migrate %s before %s goes", from, object.Name(after), from)
	if converter(after) == "None" {
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

// subresources compares the status and scale of a version.
func (c *comparison) subresources(path string, before, after object.Tree) {
	old, now := child(before, "subresources"), child(after, "subresources")
	path += ".subresources"
	_, had := old["status"]
	_, has := now["status"]
	switch {
	case had && !has:
		c.add(Breaking, path, "status is gone: clients that write /status fail")
	case has && !had:
		c.add(Breaking, path+".status", "status is new: what clients write into status of the object itself is ignored, only /status writes it")
	}
	was, is := child(old, "scale"), child(now, "scale")
	switch {
	case was != nil && is == nil:
		c.add(Breaking, path, "scale is gone: clients that use /scale fail")
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
			c.add(Breaking, path+".scale."+key, "/scale shows and writes another field; it was %s", shown(a))
		}
	}
}

// replicas says what a new scale asks of objects: that the numbers that it shows are not below 0.
func (c *comparison) replicas(path string, scale, schema object.Tree) {
	for _, key := range []string{"specReplicasPath", "statusReplicasPath"} {
		s := schema
		for _, name := range strings.Split(strings.TrimPrefix(object.String(scale, key), "."), ".") {
			s = child(child(s, "properties"), name)
		}
		if least, ok := number(s["minimum"]); !ok || least < 0 {
			c.add(Breaking, path+"."+key, "objects with a number below 0 there cannot be updated, and the schema allows it: it has no minimum of 0")
		}
	}
}

// lookups compares what clients select by, and what they are shown.
func (c *comparison) lookups(path string, before, after object.Tree) {
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
		for _, name := range gone(names(before), names(after)) {
			c.add(l.effect, path+"."+l.key, l.lost, name)
		}
	}
}
