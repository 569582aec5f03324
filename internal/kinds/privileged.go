package kinds

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// isPrivilegedError reports whether validation returned e only because privileged containers are not allowed. In
// upstream, the setting that allows them applies to the whole process (k8s.io/kubernetes/pkg/capabilities), so
// Trellis leaves it false. A server that allows privileged containers drops these errors.
func isPrivilegedError(e *field.Error) bool {
	return e.Type == field.ErrorTypeForbidden && strings.HasSuffix(e.Detail, "disallowed by cluster policy")
}
