package apiserver

import (
	"net/http"

	"k8s.io/apiserver/pkg/server/filters"

	"github.com/trellis-k8s/trellis/internal/api/metrics"
	"github.com/trellis-k8s/trellis/internal/serving"
)

// gauges returns the metrics whose values are read when the metrics are requested.
func (s *Server) gauges() []metrics.Gauge {
	read := func(of func(serving.Connections) int) func() float64 {
		return func() float64 { return float64(of(s.http.Connections())) }
	}
	return append(append(s.diskGauges(), s.storageGauges()...),
		metrics.Gauge{Name: "trellis_connections", Help: "Open connections of clients.",
			Read: read(func(c serving.Connections) int { return c.Open })},
		metrics.Gauge{Name: "trellis_connections_authenticated",
			Help: "Open connections of clients that have authenticated.",
			Read: read(func(c serving.Connections) int { return c.Authenticated })},
		metrics.Gauge{Name: "trellis_connections_limit",
			Help: "Maximum number of open connections, derived from the limit of open files.",
			Read: read(func(c serving.Connections) int { return c.Limit })},
		metrics.Gauge{Name: "trellis_connections_closed",
			Help: "Unauthenticated connections that were closed since the start to accept newer connections.",
			Read: read(func(c serving.Connections) int { return c.Closed })},
		metrics.Gauge{Name: "trellis_connections_refused",
			Help: "Requests refused since the start because too many authenticated connections were open.",
			Read: read(func(c serving.Connections) int { return c.Refused })},
	)
}

// withGoaway returns a handler that closes the connection of a fraction of the HTTP/2 requests after the requests in
// flight (Config.GoawayChance).
func (s *Server) withGoaway(h http.Handler) http.Handler {
	if s.config.GoawayChance == 0 {
		return h
	}
	return filters.WithProbabilisticGoaway(h, s.config.GoawayChance)
}
