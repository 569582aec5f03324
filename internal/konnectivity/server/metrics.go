package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trellis-k8s/trellis/internal/konnectivity/admin"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// Reasons why a dial failed, the reference's.
const (
	noAgent       = "no_agent"
	errorResponse = "error_response" // the agent says so
	dialTimedOut  = "backend_dial_timeout"
)

// metrics count what a server does. They have the reference's names where that counts the same.
type metrics struct {
	registry *prometheus.Registry

	ready, pending, agentStreams, frontendStreams, httpConnections prometheus.Gauge

	backends                        *prometheus.GaugeVec // by strategy
	stalled, culled                 prometheus.Counter
	failures, packets               *prometheus.CounterVec
	dials                           prometheus.Histogram
	onFrontendPacket, onAgentPacket func(t wire.Type, received bool)
}

// newMetrics returns metrics of nothing yet. How many connections are open, established says when they are asked for.
func newMetrics(established func() int) *metrics {
	r, made := admin.NewRegistry("server")
	streams := made.NewGaugeVec(prometheus.GaugeOpts{Name: "grpc_connections", Help: "Number of streams of gRPC."}, []string{"service_method"})
	m := &metrics{
		registry:        r,
		ready:           made.NewGauge(prometheus.GaugeOpts{Name: "ready_backend_connections", Help: "Number of agents that are connected."}),
		pending:         made.NewGauge(prometheus.GaugeOpts{Name: "pending_backend_dials", Help: "Number of dials that agents have not answered yet."}),
		agentStreams:    streams.WithLabelValues("Connect"),
		frontendStreams: streams.WithLabelValues("Proxy"),
		httpConnections: made.NewGauge(prometheus.GaugeOpts{Name: "http_connections", Help: "Number of connections that were asked for by HTTP CONNECT."}),
		backends: made.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ready_backends", Help: "Number of agents that a strategy chooses from, or with destHost of their hosts.",
		}, []string{"proxy_strategy"}),
		stalled: made.NewCounter(prometheus.CounterOpts{
			Name: "stalled_connections_total", Help: "Number of tunnelled connections that were closed because an end took too little of what waited for it.",
		}),
		culled: made.NewCounter(prometheus.CounterOpts{Name: "culled_leases_count", Help: "Number of expired Leases of servers that were removed."}),
		failures: made.NewCounterVec(prometheus.CounterOpts{
			Name: "dial_failure_count", Help: "Number of failures of dials, of which one may have several.",
		}, []string{"reason"}),
		packets: admin.NewPacketCounter(made),
		dials: made.NewHistogram(prometheus.HistogramOpts{
			Name: "dial_duration_seconds", Help: "How long dials took that succeeded.",
			Buckets: []float64{0.000001, 0.00001, 0.0001, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5},
		}),
	}
	made.NewGaugeFunc(prometheus.GaugeOpts{Name: "established_connections", Help: "Number of tunnelled connections that are open."},
		func() float64 { return float64(established()) })
	m.onFrontendPacket, m.onAgentPacket = admin.CountPackets(m.packets, "from_client", "to_client"), admin.CountPackets(m.packets, "from_agent", "to_agent")
	return m
}
