package api

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trellis-k8s/trellis/internal/conversion"
)

// conversions are the metrics of calls to conversion webhooks: by CRD, and by how they end.
type conversions struct {
	byCRD    *prometheus.HistogramVec
	byResult *prometheus.HistogramVec
	requests *prometheus.CounterVec
}

func newConversions() conversions {
	return conversions{
		byCRD: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_crd_conversion_webhook_duration_seconds",
			Help:    "Duration of calls to conversion webhooks in seconds, by CRD, versions and success.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"crd_name", "from_version", "to_version", "succeeded"}),
		byResult: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_conversion_webhook_duration_seconds",
			Help:    "Duration of calls to conversion webhooks in seconds, by how they end.",
			Buckets: []float64{0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 45, 60},
		}, []string{"result", "failure_type"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_conversion_webhook_request_total",
			Help: "Number of calls to conversion webhooks, by how they end.",
		}, []string{"result", "failure_type"}),
	}
}

// ObserveConversion counts a call to a conversion webhook.
func (s *Server) ObserveConversion(c conversion.Call) {
	m, result := &s.metrics.conversions, "success"
	if c.Failure != "" {
		result = "failure"
	}
	seconds := c.Took.Seconds()
	m.byCRD.WithLabelValues(c.CRD, c.From, c.To, strconv.FormatBool(c.Failure == "")).Observe(seconds)
	m.byResult.WithLabelValues(result, c.Failure).Observe(seconds)
	m.requests.WithLabelValues(result, c.Failure).Inc()
}
