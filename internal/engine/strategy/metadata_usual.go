package strategy

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/trellis-k8s/trellis/internal/object"
)

// usualMetadata reports whether metadata has a common form that is always valid. Other metadata needs the full
// validation.
func usualMetadata(md object.Tree) bool {
	if md["ownerReferences"] != nil {
		return false
	}
	labels, _ := md["labels"].(object.Tree)
	for key, v := range labels {
		if value, ok := v.(string); !ok || !usualKey(key) || value != "" && !usualName(value) {
			return false
		}
	}
	annotations, _ := md["annotations"].(object.Tree)
	size := 0
	for key, v := range annotations {
		value, ok := v.(string)
		if !ok || !usualKey(key) {
			return false
		}
		size += len(key) + len(value)
	}
	return size <= validation.TotalAnnotationSizeLimitB
}

// usualKey reports whether a label key is a name, or a lower-case domain and a name.
func usualKey(key string) bool {
	domain, name, ok := strings.Cut(key, "/")
	if !ok {
		return usualName(key)
	}
	if len(domain) > utilvalidation.DNS1123SubdomainMaxLength {
		return false
	}
	for label := range strings.SplitSeq(domain, ".") {
		if !usualName(label) ||
			strings.ContainsFunc(label, func(c rune) bool { return c == '_' || 'A' <= c && c <= 'Z' }) {
			return false
		}
	}
	return usualName(name)
}

// usualName reports whether text is a valid, non-empty label value.
func usualName(text string) bool {
	if text == "" || len(text) > utilvalidation.LabelValueMaxLength ||
		!alphanumeric(text[0]) || !alphanumeric(text[len(text)-1]) {
		return false
	}
	for i := range len(text) {
		if c := text[i]; !alphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
