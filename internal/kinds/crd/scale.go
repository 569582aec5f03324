package crd

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// scalePath is one of the paths of a scale subresource.
type scalePath struct {
	at    *field.Path
	value string
}

// scalePaths returns an error for each path of a scale subresource that is not in dot notation, which the
// documentation requires. Upstream accepts brackets, wildcards and empty field names, but then requests to /scale
// fail. A path that the old CRD also has is accepted. old is nil on a create.
func scalePaths(obj, old object.Tree) (errs field.ErrorList) {
	known := scalePathsOf(old)
	for _, p := range scalePathsOf(obj) {
		same := func(k scalePath) bool { return k.value == p.value }
		if !inDotNotation(p.value) && !slices.ContainsFunc(known, same) {
			errs = append(errs, field.Invalid(p.at, p.value, "must be a json path in the dot notation"))
		}
	}
	return errs
}

// scalePathsOf returns the paths in all versions of a CRD. In v1beta1, all versions can share one scale subresource.
func scalePathsOf(crd object.Tree) (paths []scalePath) {
	add := func(in object.Tree, at *field.Path) {
		for _, name := range []string{"specReplicasPath", "statusReplicasPath", "labelSelectorPath"} {
			if value := object.StringAt(in, "subresources", "scale", name); value != "" {
				paths = append(paths, scalePath{at.Child("subresources", "scale", name), value})
			}
		}
	}
	at := field.NewPath("spec")
	add(object.TreeAt(crd, "spec"), at)
	for i, version := range object.TreesAt(crd, "spec", "versions") {
		add(version, at.Child("versions").Index(i))
	}
	return paths
}

// inDotNotation reports whether a path is a sequence of names, each after a dot.
func inDotNotation(path string) bool {
	names := strings.Split(path, ".")
	return len(names) > 1 && names[0] == "" && !slices.Contains(names[1:], "") && !strings.ContainsAny(path, "[]*")
}
