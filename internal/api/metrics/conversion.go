package metrics

import (
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// conversions holds the metrics of calls to conversion webhooks, by CRD and by result.
type conversions struct {
	byCRD    *prometheus.HistogramVec
	byResult *prometheus.HistogramVec
	requests *prometheus.CounterVec

	mu   sync.Mutex
	crds map[string]struct{} // CRDs that have metrics in byCRD
}

// prune removes the metrics of CRDs that are not in the catalog c.
func (m *conversions) prune(c *catalog.Catalog) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for crd := range m.crds {
		if !isServed(c, crd) {
			m.byCRD.DeletePartialMatch(prometheus.Labels{"crd_name": crd})
			delete(m.crds, crd)
		}
	}
}

func isServed(c *catalog.Catalog, crd string) bool {
	plural, group, _ := strings.Cut(crd, ".")
	return c.Definition(group, plural) != nil
}

func newConversions() *conversions {
	return &conversions{
		crds: map[string]struct{}{},
		byCRD: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_crd_conversion_webhook_duration_seconds",
			Help:    "Duration of calls to conversion webhooks in seconds, by CRD, versions and success.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"crd_name", "from_version", "to_version", "succeeded"}),
		byResult: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_conversion_webhook_duration_seconds",
			Help:    "Duration of calls to conversion webhooks in seconds, by result.",
			Buckets: []float64{0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 45, 60},
		}, []string{"result", "failure_type"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_conversion_webhook_request_total",
			Help: "Number of calls to conversion webhooks, by result.",
		}, []string{"result", "failure_type"}),
	}
}

// ObserveConversion records a call to a conversion webhook. The metrics by CRD exclude a CRD that is no longer served.
func (m *Metrics) ObserveConversion(c conversion.Call) {
	all, result, seconds := m.conversions, "success", c.Duration.Seconds()
	if c.Failure != "" {
		result = "failure"
	}
	all.byResult.WithLabelValues(result, c.Failure).Observe(seconds)
	all.requests.WithLabelValues(result, c.Failure).Inc()
	all.mu.Lock()
	defer all.mu.Unlock()
	if isServed(m.live.Load(), c.CRD) {
		all.crds[c.CRD] = struct{}{}
		all.byCRD.WithLabelValues(c.CRD, c.From, c.To, strconv.FormatBool(c.Failure == "")).Observe(seconds)
	}
}
