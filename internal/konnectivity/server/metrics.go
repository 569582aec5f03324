package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trellis-k8s/trellis/internal/konnectivity/admin"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// The reasons of failed dials in metrics, as in the reference server.
const (
	noAgent       = "no_agent"
	errorResponse = "error_response" // the agent has returned an error
	dialTimedOut  = "backend_dial_timeout"
)

// metrics holds the metrics of a server. Metrics that the reference server also has use its names.
type metrics struct {
	registry *prometheus.Registry

	ready, pending, agentStreams, frontendStreams, httpConnections prometheus.Gauge

	backends                        *prometheus.GaugeVec // by strategy
	stalled, culled                 prometheus.Counter
	failures, packets               *prometheus.CounterVec
	dials                           prometheus.Histogram
	onFrontendPacket, onAgentPacket func(t wire.Type, received bool)
}

// newMetrics returns metrics with their own registry. established returns the number of open tunnelled
// connections.
func newMetrics(established func() int) *metrics {
	r, factory := admin.NewRegistry("server")
	streams := factory.NewGaugeVec(prometheus.GaugeOpts{
		Name: "grpc_connections", Help: "Number of gRPC streams.",
	}, []string{"service_method"})
	m := &metrics{
		registry: r,
		ready: factory.NewGauge(prometheus.GaugeOpts{
			Name: "ready_backend_connections", Help: "Number of agents that are connected.",
		}),
		pending: factory.NewGauge(prometheus.GaugeOpts{
			Name: "pending_backend_dials", Help: "Number of dials that agents have not answered yet.",
		}),
		agentStreams:    streams.WithLabelValues("Connect"),
		frontendStreams: streams.WithLabelValues("Proxy"),
		httpConnections: factory.NewGauge(prometheus.GaugeOpts{
			Name: "http_connections", Help: "Number of connections requested with HTTP CONNECT.",
		}),
		backends: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ready_backends",
			Help: "Number of agents that a strategy can select. For destHost, number of hosts that agents serve.",
		}, []string{"proxy_strategy"}),
		stalled: factory.NewCounter(prometheus.CounterOpts{
			Name: "stalled_connections_total",
			Help: "Number of tunnelled connections that were closed because one end read too slowly.",
		}),
		culled: factory.NewCounter(prometheus.CounterOpts{
			Name: "culled_leases_count", Help: "Number of expired server Leases that were deleted.",
		}),
		failures: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "dial_failure_count", Help: "Number of dial failures. A dial can fail several times.",
		}, []string{"reason"}),
		packets: admin.NewPacketCounter(factory),
		dials: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "dial_duration_seconds", Help: "Duration of successful dials in seconds.",
			Buckets: []float64{0.000001, 0.00001, 0.0001, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5},
		}),
	}
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "established_connections", Help: "Number of tunnelled connections that are open.",
	}, func() float64 { return float64(established()) })
	m.onFrontendPacket = admin.CountPackets(m.packets, "from_client", "to_client")
	m.onAgentPacket = admin.CountPackets(m.packets, "from_agent", "to_agent")
	return m
}
