package conformance_test

import (
	"path"
	"slices"
	"strings"
	"testing"
)

// absent lists the groups, resources and subresources in kube-apiserver's discovery that Trellis does not
// implement. An entry for a group includes its resources, and an entry for a resource includes its subresources.
// docs/compatibility.md describes the alternatives.
var absent []string

// discoveryPruner removes the absent resources from kube-apiserver's discovery documents. The map met contains the
// entries of the list absent that were found there.
type discoveryPruner struct{ met map[string]bool }

func (p discoveryPruner) isAbsent(name string) bool {
	for _, a := range absent {
		if name == a || strings.HasPrefix(name, a+"/") {
			p.met[a] = true
			return true
		}
	}
	return false
}

// prune removes the absent resources from a discovery document of any form.
func (p discoveryPruner) prune(doc any) {
	p.list(doc, "groups", func(g any) string { return nested[string](g, "name") })
	p.list(doc, "items", func(g any) string { return nested[string](g, "metadata", "name") })
	p.resources(doc, nested[string](doc, "groupVersion"), "name")
	for _, g := range nested[[]any](doc, "items") {
		for _, v := range nested[[]any](g, "versions") {
			p.resources(v, path.Join(nested[string](g, "metadata", "name"), nested[string](v, "version")), "resource")
		}
	}
}

// resources removes the absent resources of one version. field is the key of a resource's name: "name" or
// "resource".
func (p discoveryPruner) resources(version any, gv, field string) {
	name := func(r any) string { return gv + " " + nested[string](r, field) }
	p.list(version, "resources", name)
	for _, r := range nested[[]any](version, "resources") {
		p.list(r, "subresources", func(s any) string { return name(r) + "/" + nested[string](s, "subresource") })
	}
}

// list removes the absent items from the list parent[key], and the list itself if no item remains.
func (p discoveryPruner) list(parent any, key string, name func(any) string) {
	all := nested[[]any](parent, key)
	left := slices.DeleteFunc(all, func(item any) bool { return p.isAbsent(name(item)) })
	switch {
	case len(left) > 0:
		parent.(object)[key] = left
	case len(all) > 0:
		delete(parent.(object), key)
	}
}

// reportUnused fails the test for each entry of absent that kube-apiserver does not serve.
func (p discoveryPruner) reportUnused(t *testing.T) {
	t.Helper()
	for _, a := range absent {
		if !p.met[a] {
			t.Errorf("absent lists %s, but kube-apiserver does not serve it", a)
		}
	}
}
