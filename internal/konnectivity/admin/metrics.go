package admin

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// NewRegistry returns a registry with the metrics of the Go runtime and the process, and a factory that registers
// more metrics. The factory adds the prefix konnectivity_network_proxy_server_ or
// konnectivity_network_proxy_agent_ to their names, depending on component. The reference implementation uses the
// same names (kubernetes-sigs/apiserver-network-proxy, pkg/server/metrics and pkg/agent/metrics).
func NewRegistry(component string) (*prometheus.Registry, promauto.Factory) {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r, promauto.With(prometheus.WrapRegistererWithPrefix("konnectivity_network_proxy_"+component+"_", r))
}

// NewPacketCounter returns the counter of packets by segment and packet type.
func NewPacketCounter(factory promauto.Factory) *prometheus.CounterVec {
	return factory.NewCounterVec(prometheus.CounterOpts{Name: "stream_packets_total", Help: "Number of packets."},
		[]string{"segment", "packet_type"})
}

// CountPackets returns a function that counts each packet by its type. The label segment has the value in from for
// received packets, and the value in to for sent packets.
func CountPackets(packets *prometheus.CounterVec, from, to string) func(t wire.Type, received bool) {
	const unknown = wire.Drain + 1 // stands for all types that the wire package does not define
	var in, out [unknown + 1]prometheus.Counter
	for t := range in { // the counters are looked up once because packets are frequent
		in[t] = packets.WithLabelValues(from, wire.Type(t).String())
		out[t] = packets.WithLabelValues(to, wire.Type(t).String())
	}
	return func(t wire.Type, received bool) {
		if t = min(t, unknown); received {
			in[t].Inc()
		} else {
			out[t].Inc()
		}
	}
}
