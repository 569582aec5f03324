package apiserver

import (
	"github.com/trellis-k8s/trellis/internal/api"
	"github.com/trellis-k8s/trellis/internal/serving"
)

// gauges are the metrics that are read from the server's parts when they are requested.
func (s *Server) gauges() []api.Gauge {
	read := func(of func(serving.Connections) int) func() float64 {
		return func() float64 { return float64(of(s.http.Connections())) }
	}
	return append(s.diskGauges(),
		api.Gauge{Name: "trellis_connections", Help: "Open connections of clients.", Read: read(func(c serving.Connections) int { return c.Open })},
		api.Gauge{Name: "trellis_connections_authenticated", Help: "Open connections of clients that have authenticated.", Read: read(func(c serving.Connections) int { return c.Authenticated })},
		api.Gauge{Name: "trellis_connections_limit", Help: "Maximum of open connections, by the limit of open files.", Read: read(func(c serving.Connections) int { return c.Limit })},
		api.Gauge{Name: "trellis_connections_closed", Help: "Connections without authentication closed for newer ones since the start.", Read: read(func(c serving.Connections) int { return c.Closed })},
		api.Gauge{Name: "trellis_connections_refused", Help: "Requests refused for authenticating on one connection too many since the start.", Read: read(func(c serving.Connections) int { return c.Refused })},
	)
}
