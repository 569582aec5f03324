package admin

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// NewRegistry returns one with the metrics of the process, and what puts more into it, whose names begin with
// konnectivity_network_proxy_, and server_ or agent_ (kubernetes-sigs/apiserver-network-proxy, pkg/server/metrics and pkg/agent/metrics).
func NewRegistry(end string) (*prometheus.Registry, promauto.Factory) {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r, promauto.With(prometheus.WrapRegistererWithPrefix("konnectivity_network_proxy_"+end+"_", r))
}

// NewPacketCounter is the metric of all packets, by segment and type.
func NewPacketCounter(made promauto.Factory) *prometheus.CounterVec {
	return made.NewCounterVec(prometheus.CounterOpts{Name: "stream_packets_total", Help: "Number of packets."}, []string{"segment", "packet_type"})
}

// CountPackets counts packets in it that are received from one segment, and sent to another.
func CountPackets(packets *prometheus.CounterVec, from, to string) func(t wire.Type, received bool) {
	const others = wire.Drain + 1 // types that are not known
	var in, out [others + 1]prometheus.Counter
	for t := range in { // looked up once: there are very many
		in[t] = packets.WithLabelValues(from, wire.Type(t).String())
		out[t] = packets.WithLabelValues(to, wire.Type(t).String())
	}
	return func(t wire.Type, received bool) {
		if t = min(t, others); received {
			in[t].Inc()
		} else {
			out[t].Inc()
		}
	}
}
