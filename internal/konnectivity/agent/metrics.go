package agent

import (
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// The names of metrics are the reference's (kubernetes-sigs/apiserver-network-proxy, pkg/agent/metrics).
	prefix = "konnectivity_network_proxy_agent_"
	// FromAgent is, in Metrics, what goes to the server.
	FromAgent = "from_agent"
	// ToAgent is what comes from it.
	ToAgent = "to_agent"
)

// Metrics are those of one agent.
type Metrics struct {
	registry *prometheus.Registry
	open     atomic.Int64 // connections to destinations

	dials                                         prometheus.Histogram
	dialFailures, serverFailures, packets, errors *prometheus.CounterVec
	servers, counted                              prometheus.Gauge
}

// NewMetrics returns Metrics at zero, with a registry of their own.
func NewMetrics() *Metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	made := promauto.With(r)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return made.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: prefix + name, Help: help}
	}
	m := &Metrics{
		registry: r,
		dials: made.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "dial_duration_seconds", Help: "How long it took to connect to destinations.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 2.5, 10, 30},
		}),
		dialFailures:   counters("endpoint_dial_failure_total", "Destinations that could not be connected to, by reason: timeout, unknown.", "reason"),
		serverFailures: counters("server_connection_failure_count", "Failures of tunnels, by direction. Deprecated: see stream_errors_total.", "direction"),
		packets:        counters("stream_packets_total", "Packets, by segment and type.", "segment", "packet_type"),
		errors:         counters("stream_errors_total", "Failures of tunnels, by segment, gRPC code and type of the packet.", "segment", "code", "packet_type"),
		servers:        made.NewGauge(gauge("open_server_connections", "Servers that the agent is connected to.")),
		counted:        made.NewGauge(gauge("known_server_count", "Servers that there are, as far as the agent knows.")),
	}
	made.NewGaugeFunc(gauge("open_endpoint_connections", "Open connections to destinations."), func() float64 { return float64(m.open.Load()) })
	return m
}

func (m *Metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Dialled says that a destination was connected to, or that it could not be, and how long that took.
func (m *Metrics) Dialled(took time.Duration, err error) {
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

// Opened says that there is one more connection to a destination. The agent does not end before as many are Closed.
func (m *Metrics) Opened() { m.open.Add(1) }

// Closed says that there is one less.
func (m *Metrics) Closed() { m.open.Add(-1) }

// Packet says that one has passed: FromAgent or ToAgent, and its type, as DIAL_REQ.
func (m *Metrics) Packet(segment, packetType string) {
	m.packets.WithLabelValues(segment, packetType).Inc()
}

// Failed says that a tunnel has: FromAgent or ToAgent, the gRPC code by its name, and the type of the packet, or "Unknown".
func (m *Metrics) Failed(segment, code, packetType string) {
	m.serverFailures.WithLabelValues(map[string]string{FromAgent: "to_server", ToAgent: "from_server"}[segment]).Inc()
	m.errors.WithLabelValues(segment, code, packetType).Inc()
}
