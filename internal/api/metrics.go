package api

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// metrics are named as kube-apiserver's where they count the same.
type metrics struct {
	handler           http.Handler
	requests          *prometheus.CounterVec
	latency, sizes    *prometheus.HistogramVec
	running           *prometheus.GaugeVec
	events            *prometheus.CounterVec
	deprecated        *prometheus.GaugeVec
	mutating, watches atomic.Int64
	conversions       conversions

	mu     sync.RWMutex
	series map[seriesKey]*series
}

// seriesKey names the metrics of requests that are alike.
type seriesKey struct {
	group, version, plural, subresource, verb string
	code                                      int
	named, namespaced, dryRun, apply          bool
}

// series are the metrics of requests that are alike, found once.
type series struct {
	requests prometheus.Counter
	latency  prometheus.Observer
	sizes    prometheus.Observer // nil for what is no read
}

func newMetrics(s *Server) *metrics {
	labels := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	withDryRun := append([]string{"dry_run"}, labels...)
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
		}, append([]string{"code"}, withDryRun...)),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_request_duration_seconds",
			Help:    "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, withDryRun),
		sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_response_sizes",
			Help:    "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
			Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
		}, labels),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component.",
		}, labels),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_watch_events_total",
			Help: "Number of events sent in watch clients",
		}, []string{"group", "version", "resource"}),
		deprecated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_requested_deprecated_apis",
			Help: "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
		}, []string{"group", "version", "resource", "subresource", "removed_release"}),
		conversions: newConversions(),
		series:      map[seriesKey]*series{},
	}
	r := prometheus.NewRegistry()
	r.MustRegister(m.requests, m.latency, m.sizes, m.running, m.events, m.deprecated,
		m.conversions.byCRD, m.conversions.byResult, m.conversions.requests,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &serverCollector{s})
	for _, g := range s.config.Gauges {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.Name, Help: g.Help}, g.Read))
	}
	m.handler = promhttp.HandlerFor(r, promhttp.HandlerOpts{})
	return m
}

// find makes the series of k.
func (m *metrics) find(k seriesKey, v *resource.Version) *series {
	verb := k.reported()
	labels := []string{verb, k.group, k.version, k.plural, k.subresource, k.scope(), "apiserver"}
	if v.Deprecated {
		m.deprecated.WithLabelValues(k.group, k.version, k.plural, k.subresource, v.RemovedRelease).Set(1)
	}
	dryRun := ""
	if k.dryRun {
		dryRun = "All"
	}
	withDryRun := append([]string{dryRun}, labels...)
	s := &series{
		requests: m.requests.WithLabelValues(append([]string{strconv.Itoa(k.code)}, withDryRun...)...),
		latency:  m.latency.WithLabelValues(withDryRun...),
	}
	if verb == "GET" || verb == "LIST" {
		s.sizes = m.sizes.WithLabelValues(labels...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.series[k]; old != nil {
		return old
	}
	m.series[k] = s
	return s
}

// reported is the verb as metrics call it: the method, with its special cases.
func (k *seriesKey) reported() string {
	switch k.verb {
	case verbGet:
		return "GET"
	case verbList:
		return "LIST"
	case verbWatch:
		return "WATCH"
	case verbCreate:
		return "POST"
	case verbUpdate:
		return "PUT"
	case verbDelete, verbClear:
		return "DELETE"
	case verbPatch:
		if k.apply {
			return "APPLY"
		}
		return "PATCH"
	}
	return "OTHER"
}

func (k *seriesKey) scope() string {
	p := path{verb: k.verb, resource: true}
	if k.named {
		p.name = "x"
	}
	if k.namespaced {
		p.namespace = "x"
	}
	return p.scope()
}

// watching counts a watch that has begun; the caller calls done when it is over.
func (m *metrics) watching(q *request) (done func()) {
	g := m.running.WithLabelValues("WATCH", q.group, q.version, q.plural, q.subresource, q.path.scope(), "apiserver")
	g.Inc()
	m.watches.Add(1)
	return func() {
		g.Dec()
		m.watches.Add(-1)
	}
}

// sent counts events of a watch.
func (m *metrics) sent(q *request, n int) {
	m.events.WithLabelValues(q.group, q.version, q.plural).Add(float64(n))
}

// serverCollector reports what is read off the server when it is asked for.
type serverCollector struct{ server *Server }

var (
	inflightDesc = prometheus.NewDesc("apiserver_current_inflight_requests",
		"Number of requests of this apiserver that are being answered, per request kind.", []string{"request_kind"}, nil)
	objectsDesc = prometheus.NewDesc("apiserver_storage_objects",
		"Number of stored objects at the time of last check split by kind.", []string{"resource"}, nil)
	auditDesc = prometheus.NewDesc("apiserver_audit_event_total",
		"Counter of audit events generated and sent to the audit backend.", nil, nil)
	auditLostDesc = prometheus.NewDesc("apiserver_audit_error_total",
		"Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.", []string{"plugin"}, nil)
)

// Describe implements prometheus.Collector.
func (c *serverCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- inflightDesc
	ch <- objectsDesc
	ch <- auditDesc
	ch <- auditLostDesc
}

// Collect implements prometheus.Collector.
func (c *serverCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.server
	mutating := s.metrics.mutating.Load()
	reading := max(0, s.inflight.Load()-mutating-s.metrics.watches.Load())
	ch <- prometheus.MustNewConstMetric(inflightDesc, prometheus.GaugeValue, float64(mutating), "mutating")
	ch <- prometheus.MustNewConstMetric(inflightDesc, prometheus.GaugeValue, float64(reading), "readOnly")
	if s.config.Audit != nil {
		recorded, lost := s.config.Audit.Counts()
		ch <- prometheus.MustNewConstMetric(auditDesc, prometheus.CounterValue, float64(recorded))
		ch <- prometheus.MustNewConstMetric(auditLostDesc, prometheus.CounterValue, float64(lost), "log")
	}
	head := s.engine.Store.Head()
	for d := range s.live.Load().Definitions() {
		if d.Behavior.Answer != nil {
			continue
		}
		name := d.Names.Plural
		if d.Group != "" {
			name += "." + d.Group
		}
		ch <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, float64(head.Count(d.Prefix, "")), name)
	}
}
