package agent

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trellis-k8s/trellis/internal/konnectivity/admin"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// Metrics are those of one agent. They have the reference's names and texts where that counts the same, as its own tests compare both.
type Metrics struct {
	registry   *prometheus.Registry
	openConns  atomic.Int64 // connections to destinations
	lastConnID atomic.Int64 // number of one: the reference's server keeps those of an agent together, whatever tunnel they go through

	dials                   prometheus.Histogram
	dialFailures            *prometheus.CounterVec
	servers, knownServers   prometheus.Gauge
	serverFailures, stalled prometheus.Counter
	onPacket                func(t wire.Type, received bool)
}

// NewMetrics returns Metrics at zero, with a registry of their own.
func NewMetrics() *Metrics {
	r, made := admin.NewRegistry("agent")
	m := &Metrics{
		registry: r,
		dials: made.NewHistogram(prometheus.HistogramOpts{
			Name: "dial_duration_seconds", Help: "Latency of dial to the remote endpoint in seconds",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 2.5, 10, 30},
		}),
		dialFailures: made.NewCounterVec(prometheus.CounterOpts{
			Name: "endpoint_dial_failure_total", Help: "Number of failures dialing the remote endpoint, by reason (example: timeout).",
		}, []string{"reason"}),
		servers:      made.NewGauge(prometheus.GaugeOpts{Name: "open_server_connections", Help: "Current number of open server connections."}),
		knownServers: made.NewGauge(prometheus.GaugeOpts{Name: "known_server_count", Help: "Current number of servers agent is trying to connect to."}),
		serverFailures: made.NewCounterVec(prometheus.CounterOpts{
			Name: "server_connection_failure_count", Help: "Connections to servers that have ended while the agent has not.",
		}, []string{"direction"}).WithLabelValues("from_server"),
		stalled: made.NewCounter(prometheus.CounterOpts{
			Name: "stalled_connections_total", Help: "Connections that were closed because their destination read too little of what waited for it.",
		}),
		onPacket: admin.CountPackets(admin.NewPacketCounter(made), "to_agent", "from_agent"),
	}
	made.NewGaugeFunc(prometheus.GaugeOpts{Name: "open_endpoint_connections", Help: "Current number of open endpoint connections."},
		func() float64 { return float64(m.openConns.Load()) })
	return m
}

// ObserveDial says that a destination was connected to, or that it could not be, and how long that took.
func (m *Metrics) ObserveDial(took time.Duration, err error) {
	var timeout net.Error
	switch {
	case err == nil:
		m.dials.Observe(took.Seconds())
	case errors.As(err, &timeout) && timeout.Timeout():
		m.dialFailures.WithLabelValues("timeout").Inc()
	default:
		m.dialFailures.WithLabelValues("unknown").Inc()
	}
}
