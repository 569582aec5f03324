package strategy

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestUsualMetadata checks that all metadata that usualMetadata accepts is valid in upstream. It also checks that
// usualMetadata accepts common metadata.
func TestUsualMetadata(t *testing.T) {
	key, long := field.NewPath("metadata"), strings.Repeat("a", 64)
	valid := func(md object.Tree) bool {
		o := object.ObjectMeta(object.Tree{"metadata": md})
		return len(validation.ValidateAnnotations(o.Annotations, key)) == 0 &&
			len(metav1validation.ValidateLabels(o.Labels, key)) == 0
	}
	for _, text := range []string{"", "a", "A1", "-", "a-", "_a", "a.b_c-d", "a b", "é", "/", "a/", "/a", "a/b",
		"a/b/c", "A/b", "a_b/c", "a.b/c", "a..b/c", "-a.b/c", "a.b-/c", ".a/b",
		long, long[1:], long + "/a", long[1:] + "/a", strings.Repeat("a.", 126) + "ab/c", strings.Repeat("a.", 126) +
			"a/c", "a/" + long, "a/" + long[1:]} {
		for _, md := range []object.Tree{{"labels": object.Tree{text: "v"}}, {"labels": object.Tree{"k": text}},
			{"annotations": object.Tree{text: "v"}}, {"annotations": object.Tree{"k": text}}} {
			if usualMetadata(md) && !valid(md) {
				t.Errorf("usualMetadata accepts %v, which is invalid", md)
			}
		}
	}
	for size, want := range map[int]bool{validation.TotalAnnotationSizeLimitB - 1: true,
		validation.TotalAnnotationSizeLimitB: false} {
		if md := (object.Tree{"annotations": object.Tree{"k": strings.Repeat("x", size)}}); usualMetadata(md) != want ||
			valid(md) != want {
			t.Errorf("an annotation of %d bytes: got usual %t and valid %t", size, usualMetadata(md), valid(md))
		}
	}
	usual := object.Tree{"labels": object.Tree{"app.kubernetes.io/name": "a", "tier": ""},
		"annotations": object.Tree{"kubectl.kubernetes.io/last-applied-configuration": "{}\n"}}
	if !usualMetadata(usual) || usualMetadata(object.Tree{"ownerReferences": []any{}}) {
		t.Error("got usual metadata rejected, or owner references accepted")
	}
}
