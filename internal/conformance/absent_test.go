package conformance_test

import (
	"path"
	"slices"
	"strings"
	"testing"
)

// absent is all that discovery of kube-apiserver has and Trellis has not yet: groups, resources with what is below them, and
// subresources. docs/compatibility.md says what there is instead.
var absent []string

// pruning takes out of kube-apiserver's documents what is absent.
type pruning struct{ met map[string]bool }

func (p pruning) absent(name string) bool {
	for _, a := range absent {
		if name == a || strings.HasPrefix(name, a+"/") {
			p.met[a] = true
			return true
		}
	}
	return false
}

// document prunes any document of discovery.
func (p pruning) document(doc any) {
	p.list(doc, "groups", func(g any) string { return nested[string](g, "name") })
	p.list(doc, "items", func(g any) string { return nested[string](g, "metadata", "name") })
	p.resources(doc, nested[string](doc, "groupVersion"), "name")
	for _, g := range nested[[]any](doc, "items") {
		for _, v := range nested[[]any](g, "versions") {
			p.resources(v, path.Join(nested[string](g, "metadata", "name"), nested[string](v, "version")), "resource")
		}
	}
}

// resources prunes those of a version, which are called by a field.
func (p pruning) resources(of any, gv, field string) {
	name := func(r any) string { return gv + " " + nested[string](r, field) }
	p.list(of, "resources", name)
	for _, r := range nested[[]any](of, "resources") {
		p.list(r, "subresources", func(s any) string { return name(r) + "/" + nested[string](s, "subresource") })
	}
}

func (p pruning) list(of any, key string, name func(any) string) {
	all := nested[[]any](of, key)
	left := slices.DeleteFunc(all, func(item any) bool { return p.absent(name(item)) })
	switch {
	case len(left) > 0:
		of.(object)[key] = left
	case len(all) > 0:
		delete(of.(object), key)
	}
}

// unmet fails the test for what kube-apiserver does not have either.
func (p pruning) unmet(t *testing.T) {
	t.Helper()
	for _, a := range absent {
		if !p.met[a] {
			t.Errorf("kube-apiserver has no %s that could be absent here", a)
		}
	}
}
