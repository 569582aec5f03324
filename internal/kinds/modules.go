//go:build modules

package kinds

// This file is never compiled. It keeps modules in go.mod. k8s.io/kubernetes requires its staging modules at v0.0.0, a
// version that exists only through its own replace directives. A module that requires Trellis does not have these
// directives. Trellis therefore must require every staging module that `go mod tidy` loads at a version that exists.
import _ "k8s.io/cri-api/pkg/apis"
