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

	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

const (
	// The names of metrics are the reference's (kubernetes-sigs/apiserver-network-proxy, pkg/agent/metrics).
	prefix = "konnectivity_network_proxy_agent_"
	// What goes to the server, and what comes from it.
	fromAgent = "from_agent"
	toAgent   = "to_agent"
)

// Metrics are those of one agent.
type Metrics struct {
	registry *prometheus.Registry
	open     atomic.Int64 // connections to destinations

	dials                 prometheus.Histogram
	dialFailures, packets *prometheus.CounterVec
	servers, counted      prometheus.Gauge
	stalled               prometheus.Counter
	sent, received        [wire.Drain + 1]prometheus.Counter // of packets, looked up once
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
		dialFailures: counters("endpoint_dial_failure_total", "Destinations that could not be connected to, by reason: timeout, unknown.", "reason"),
		packets:      counters("stream_packets_total", "Packets, by segment and type.", "segment", "packet_type"),
		stalled:      made.NewCounter(prometheus.CounterOpts{Name: prefix + "stalled_connections_total", Help: "Connections that were closed because their destination read nothing."}),
		servers:      made.NewGauge(gauge("open_server_connections", "Servers that the agent is connected to.")),
		counted:      made.NewGauge(gauge("known_server_count", "Servers that there are, as far as the agent knows.")),
	}
	for t := range m.sent {
		kind := wire.Type(t).String()
		m.sent[t], m.received[t] = m.packets.WithLabelValues(fromAgent, kind), m.packets.WithLabelValues(toAgent, kind)
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

// saw says that a packet has passed.
func (m *Metrics) saw(t wire.Type, received bool) {
	way := &m.sent
	if received {
		way = &m.received
	}
	way[min(t, wire.Drain)].Inc()
}

// Stalled says that a connection was closed, as its destination reads nothing.
func (m *Metrics) Stalled() { m.stalled.Inc() }
