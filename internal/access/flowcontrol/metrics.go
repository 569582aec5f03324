package flowcontrol

import "github.com/prometheus/client_golang/prometheus"

// metrics holds the metrics that are updated with each event. All others are read from the levels when they are
// collected. The names are upstream's.
type metrics struct {
	rejected *prometheus.CounterVec
	waited   *prometheus.HistogramVec
}

const prefix = "apiserver_flowcontrol_"

func newMetrics() *metrics {
	return &metrics{
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix +
				"rejected_requests_total", Help: "Number of requests rejected by API Priority and Fairness subsystem",
		}, []string{"priority_level", "flow_schema", "reason"}),
		waited: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "request_wait_duration_seconds", Help: "Length of time a request spent waiting in its queue",
			Buckets: []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30},
		}, []string{"priority_level", "flow_schema", "execute"}),
	}
}

// levelMetric is a metric whose value is read from a level or from the counts of a FlowSchema at a level.
type levelMetric struct {
	*prometheus.Desc
	kind  prometheus.ValueType
	value func(l *level, c *counts) int
}

func newLevelMetric(
	kind prometheus.ValueType, name, help string, value func(l *level, c *counts) int, labels ...string,
) levelMetric {
	return levelMetric{
		prometheus.NewDesc(prefix+name, help, append([]string{"priority_level"}, labels...), nil), kind, value,
	}
}

var levelMetrics = []levelMetric{
	newLevelMetric(prometheus.GaugeValue, "nominal_limit_seats",
		"Nominal number of execution seats configured for each priority level",
		func(l *level, _ *counts) int { return l.nominal }),
	newLevelMetric(prometheus.GaugeValue, "lower_limit_seats",
		"Configured lower bound on number of execution seats available to each priority level",
		func(l *level, _ *counts) int { return l.lower }),
	newLevelMetric(prometheus.GaugeValue, "upper_limit_seats",
		"Configured upper bound on number of execution seats available to each priority level",
		func(l *level, _ *counts) int { return l.upper }),
	newLevelMetric(prometheus.GaugeValue, "current_limit_seats",
		"current derived number of execution seats available to each priority level",
		func(l *level, _ *counts) int { return l.limit }),
}

var flowMetrics = []levelMetric{
	newLevelMetric(prometheus.GaugeValue, "current_executing_requests",
		"Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage"+
			" in the API Priority and Fairness subsystem",
		func(_ *level, c *counts) int { return c.executing }, "flow_schema"),
	newLevelMetric(prometheus.GaugeValue, "current_executing_seats",
		"Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH,"+
			" any stage otherwise) requests in the API Priority and Fairness subsystem",
		func(_ *level, c *counts) int { return c.executing }, "flow_schema"),
	newLevelMetric(prometheus.GaugeValue, "current_inqueue_requests",
		"Number of requests currently pending in queues of the API Priority and Fairness subsystem",
		func(_ *level, c *counts) int { return c.queued }, "flow_schema"),
	newLevelMetric(prometheus.GaugeValue, "current_inqueue_seats",
		"Number of seats currently pending in queues of the API Priority and Fairness subsystem",
		func(_ *level, c *counts) int { return c.queued }, "flow_schema"),
	newLevelMetric(prometheus.CounterValue, "dispatched_requests_total",
		"Number of requests executed by API Priority and Fairness subsystem",
		func(_ *level, c *counts) int { return c.dispatched }, "flow_schema"),
}

// Describe implements prometheus.Collector.
func (x *Controller) Describe(ch chan<- *prometheus.Desc) {
	x.metrics.rejected.Describe(ch)
	x.metrics.waited.Describe(ch)
	for _, all := range [][]levelMetric{levelMetrics, flowMetrics} {
		for _, r := range all {
			ch <- r.Desc
		}
	}
}

// Collect implements prometheus.Collector.
func (x *Controller) Collect(ch chan<- prometheus.Metric) {
	x.metrics.rejected.Collect(ch)
	x.metrics.waited.Collect(ch)
	if x.Disabled {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.levels {
		l.collect(ch)
	}
}

func (l *level) collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range levelMetrics {
		ch <- prometheus.MustNewConstMetric(r.Desc, r.kind, float64(r.value(l, nil)), l.name)
	}
	for schema, c := range l.flows {
		for _, r := range flowMetrics {
			ch <- prometheus.MustNewConstMetric(r.Desc, r.kind, float64(r.value(l, c)), l.name, schema)
		}
	}
}
