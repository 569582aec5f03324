// Package discovery answers /api and /apis from the Catalog: groups, versions,
// resource lists and aggregated discovery.
package discovery

import (
	"net/http"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// Handler serves the discovery documents of live.
func Handler(live *resource.Live) http.Handler { panic("discovery: Handler") }
