// Package openapi publishes the Catalog as OpenAPI v2 and v3, each group and
// version built on first use.
package openapi

import (
	"net/http"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// Handler serves /openapi/v2, /openapi/v3 and /openapi/v3/... of live.
func Handler(live *resource.Live) http.Handler { panic("openapi: Handler") }
