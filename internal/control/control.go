// Package control is the loops: namespace deletion, garbage collection, the end of a CRD. Each is
// a client of the API and could run in a process of its own.
package control

import (
	"context"

	"k8s.io/client-go/rest"
)

// Run runs all loops against the API server of c until ctx is done.
func Run(ctx context.Context, c *rest.Config) error { panic("control: Run") }
