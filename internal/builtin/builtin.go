// Package builtin is the table of built-in kinds, derived from k8s.io/api, with
// Go functions where a kind has behaviour of its own.
package builtin

import "github.com/trellis-k8s/trellis/internal/resource"

// Definitions returns every built-in kind.
func Definitions() []*resource.Definition { panic("builtin: Definitions") }
