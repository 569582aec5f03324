package kinds

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// isPrivilegedError reports a problem that validation finds where privileged containers are not allowed. Upstream has one such setting for a
// process (k8s.io/kubernetes/pkg/capabilities), which stays at its default, false; here each server has its own.
func isPrivilegedError(e *field.Error) bool {
	return e.Type == field.ErrorTypeForbidden && strings.HasSuffix(e.Detail, "disallowed by cluster policy")
}
