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

// Metrics holds the metrics of one agent. Metrics that the reference agent also has use its names and help texts,
// because the tests of the reference implementation compare them.
type Metrics struct {
	registry  *prometheus.Registry
	openConns atomic.Int64 // open connections to destinations
	// lastConnID is shared by all tunnels, because the reference server expects that each connection of an agent
	// has a different ID.
	lastConnID atomic.Int64

	dials                   prometheus.Histogram
	dialFailures            *prometheus.CounterVec
	servers, knownServers   prometheus.Gauge
	serverFailures, stalled prometheus.Counter
	onPacket                func(t wire.Type, received bool)
}

// NewMetrics returns Metrics with their own registry.
func NewMetrics() *Metrics {
	r, factory := admin.NewRegistry("agent")
	m := &Metrics{
		registry: r,
		dials: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "dial_duration_seconds", Help: "Latency of dial to the remote endpoint in seconds",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 2.5, 10, 30},
		}),
		dialFailures: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "endpoint_dial_failure_total",
			Help: "Number of failures dialing the remote endpoint, by reason (example: timeout).",
		}, []string{"reason"}),
		servers: factory.NewGauge(prometheus.GaugeOpts{
			Name: "open_server_connections", Help: "Current number of open server connections.",
		}),
		knownServers: factory.NewGauge(prometheus.GaugeOpts{
			Name: "known_server_count", Help: "Current number of servers agent is trying to connect to.",
		}),
		serverFailures: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "server_connection_failure_count",
			Help: "Number of server connections that ended while the agent was running.",
		}, []string{"direction"}).WithLabelValues("from_server"),
		stalled: factory.NewCounter(prometheus.CounterOpts{
			Name: "stalled_connections_total",
			Help: "Number of connections that were closed because their destination read too slowly.",
		}),
		onPacket: admin.CountPackets(admin.NewPacketCounter(factory), "to_agent", "from_agent"),
	}
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "open_endpoint_connections", Help: "Current number of open endpoint connections.",
	}, func() float64 { return float64(m.openConns.Load()) })
	return m
}

// ObserveDial records the result and the duration of a dial to a destination.
func (m *Metrics) ObserveDial(duration time.Duration, err error) {
	var netErr net.Error
	switch {
	case err == nil:
		m.dials.Observe(duration.Seconds())
	case errors.As(err, &netErr) && netErr.Timeout():
		m.dialFailures.WithLabelValues("timeout").Inc()
	default:
		m.dialFailures.WithLabelValues("unknown").Inc()
	}
}
