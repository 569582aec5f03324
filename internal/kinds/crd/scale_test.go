package crd

import (
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestScalePathsAreInDotNotation checks that the paths of a scale subresource must be in dot notation. Paths that the
// old CRD already has are accepted (SUB-016, SUB-019, SUB-022, SUB-030).
func TestScalePathsAreInDotNotation(t *testing.T) {
	crd := func(key, path string) object.Tree {
		scale := object.Tree{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
		scale[key] = path
		return object.Tree{
			"spec": object.Tree{
				"versions": []any{object.Tree{}, object.Tree{"subresources": object.Tree{"scale": scale}}},
			},
		}
	}
	for path, ok := range map[string]bool{
		".spec.replicas": true, ".spec.a.b-c.d_e": true, ".spec.a$": true,
		".spec.list[0]": false, ".spec['replicas']": false, ".spec.*": false, ".spec.list[*].n": false,
		".spec..replicas": false, ".spec.replicas.": false,
		".spec.": false, ".spec[?(@.a)].n": false,
	} {
		for _, key := range []string{"specReplicasPath", "statusReplicasPath", "labelSelectorPath"} {
			path := path
			if key == "statusReplicasPath" {
				path = strings.Replace(path, ".spec", ".status", 1)
			}
			errs := scalePaths(crd(key, path), nil)
			if ok != (len(errs) == 0) || !ok && (errs[0].Field != "spec.versions[1].subresources.scale."+key ||
				errs[0].Detail != "must be a json path in the dot notation") {
				t.Errorf("%s %s: got %v, want valid %v", key, path, errs, ok)
			}
			if errs := scalePaths(crd(key, path), crd(key, path)); len(errs) != 0 {
				t.Errorf("%s %s in the old CRD too: got %v, want no error", key, path, errs)
			}
		}
	}
	legacy := object.Tree{
		"spec": object.Tree{"subresources": object.Tree{"scale": object.Tree{"specReplicasPath": ".spec.a[0]"}}},
	}
	if errs := scalePaths(legacy, nil); len(errs) != 1 {
		t.Errorf("v1beta1: got %v, want 1 error", errs)
	}
}
