package kinds

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// isPrivilegedError reports whether validation returned e only because privileged containers are not allowed. Upstream
// has one such setting for a process (k8s.io/kubernetes/pkg/capabilities). It keeps its default, false, and each server
// that allows such containers drops these errors.
func isPrivilegedError(e *field.Error) bool {
	return e.Type == field.ErrorTypeForbidden && strings.HasSuffix(e.Detail, "disallowed by cluster policy")
}
