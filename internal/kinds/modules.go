//go:build modules

package kinds

// This file is never compiled; it keeps modules in go.mod. k8s.io/kubernetes requires its sister modules at v0.0.0,
// a version that only its own replace lines make exist. Whoever requires Trellis has no such lines, so every sister
// module that `go mod tidy` looks into, here or there, has to be required here at a version that exists.
import _ "k8s.io/cri-api/pkg/apis"
