package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Segment is one of the four ways that packets take.
type Segment int

const (
	FromFront Segment = iota
	ToFront
	FromAgent
	ToAgent
	segments
)

// Reasons why a dial failed, the reference's.
const (
	NoAgent       = "no_agent"
	ErrorResponse = "error_response" // the agent says so
	DialTimedOut  = "backend_dial_timeout"
)

// What segments and packets are called, by number (client.proto of the reference). The last is any other packet.
var (
	segmentNames = [segments]string{FromFront: "from_client", ToFront: "to_client", FromAgent: "from_agent", ToAgent: "to_agent"}
	packetNames  = [...]string{"DIAL_REQ", "DIAL_RSP", "CLOSE_REQ", "CLOSE_RSP", "DATA", "DIAL_CLS", "Unknown"}
)

// Metrics count what a server does. They have the reference's names where that counts the same.
type Metrics struct {
	registry *prometheus.Registry

	ready, pending          prometheus.Gauge
	backends                *prometheus.GaugeVec
	stalled, culled         prometheus.Counter
	failures, streamPackets *prometheus.CounterVec
	dials                   prometheus.Histogram

	packets [segments][len(packetNames)]prometheus.Counter // looked up once: there are very many
}

// NewMetrics returns Metrics of nothing yet.
func NewMetrics() *Metrics {
	m := &Metrics{
		registry:      prometheus.NewRegistry(),
		ready:         prometheus.NewGauge(gauge("ready_backend_connections", "Number of agents that are connected.")),
		backends:      prometheus.NewGaugeVec(gauge("ready_backends", "Number of agents that a strategy chooses from, or with destHost of their hosts."), []string{"proxy_strategy"}),
		pending:       prometheus.NewGauge(gauge("pending_backend_dials", "Number of dials that agents have not answered yet.")),
		stalled:       prometheus.NewCounter(counter("stalled_connections_total", "Number of tunnelled connections that were closed because an end took nothing.")),
		culled:        prometheus.NewCounter(counter("culled_leases_count", "Number of expired Leases of servers that were removed.")),
		failures:      prometheus.NewCounterVec(counter("dial_failure_count", "Number of failures of dials, of which one may have several."), []string{"reason"}),
		streamPackets: prometheus.NewCounterVec(counter("stream_packets_total", "Number of packets."), []string{"segment", "packet_type"}),
		dials: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "dial_duration_seconds", Help: "How long dials took that succeeded.",
			Buckets: []float64{0.000001, 0.00001, 0.0001, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5},
		}),
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.ready, m.backends, m.pending, m.stalled, m.culled, m.failures, m.streamPackets, m.dials)
	for s := range m.packets {
		for kind := range m.packets[s] {
			m.packets[s][kind] = m.streamPackets.WithLabelValues(segmentNames[s], packetNames[kind])
		}
	}
	return m
}

const namespace, subsystem = "konnectivity_network_proxy", "server"

func gauge(name, help string) prometheus.GaugeOpts {
	return prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
}

func counter(name, help string) prometheus.CounterOpts {
	return prometheus.CounterOpts(gauge(name, help))
}

// Dialing counts a dial that an agent is asked for; then comes DialDone.
func (m *Metrics) Dialing() { m.pending.Inc() }

// DialDone counts the end of a dial, however it ended.
func (m *Metrics) DialDone() { m.pending.Dec() }

// DialFailed counts one of the reasons above.
func (m *Metrics) DialFailed(reason string) { m.failures.WithLabelValues(reason).Inc() }

// Opened counts a tunnelled connection, and how long its dial took.
func (m *Metrics) Opened(took time.Duration) { m.dials.Observe(took.Seconds()) }

// Established has established_connections be what open says, when it is asked for.
func (m *Metrics) Established(open func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts(gauge("established_connections", "Number of tunnelled connections that are open.")),
		func() float64 { return float64(open()) }))
}

// Stalled counts a tunnelled connection that is closed because an end takes nothing.
func (m *Metrics) Stalled() { m.stalled.Inc() }

// Packet counts a packet of a type, which is its number on the wire.
func (m *Metrics) Packet(s Segment, kind int) {
	if last := len(packetNames) - 1; kind < 0 || kind > last {
		kind = last
	}
	m.packets[s][kind].Inc()
}
