package aggregation

import "github.com/prometheus/client_golang/prometheus"

// The metric has kube-apiserver's name.
var unavailableDesc = prometheus.NewDesc("aggregator_unavailable_apiservice",
	"Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}, nil)

func newFailures() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "aggregator_unavailable_apiservice_total",
		Help: "Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
	}, []string{"name", "reason"})
}

// Describe implements prometheus.Collector.
func (a *Aggregator) Describe(ch chan<- *prometheus.Desc) {
	a.failures.Describe(ch)
	ch <- unavailableDesc
}

// Collect implements prometheus.Collector.
func (a *Aggregator) Collect(ch chan<- prometheus.Metric) {
	a.failures.Collect(ch)
	a.mu.RLock()
	defer a.mu.RUnlock()
	for name, b := range a.backends {
		unavailable := 0.0
		if c := b.condition.Load(); c.Reason != "" && !c.Available {
			unavailable = 1
		}
		ch <- prometheus.MustNewConstMetric(unavailableDesc, prometheus.GaugeValue, unavailable, name)
	}
}
