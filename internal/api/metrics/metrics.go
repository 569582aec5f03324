// Package metrics counts the requests, the watches and the calls to conversion webhooks of a server, and serves
// /metrics.
package metrics

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// Gauge is a metric whose value is read on every scrape.
type Gauge struct {
	Name, Help string
	Read       func() float64
}

// Durations is a histogram of durations.
type Durations struct{ prometheus.Histogram }

// NewDurations returns an empty histogram of durations between a millisecond and eight seconds.
func NewDurations(name, help string) *Durations {
	return &Durations{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
	})}
}

// Observe adds a duration.
func (d *Durations) Observe(t time.Duration) { d.Histogram.Observe(t.Seconds()) }

// Metrics holds the metrics of the server. Metrics that kube-apiserver has too have the same names.
type Metrics struct {
	Handler           http.Handler
	requests          *prometheus.CounterVec
	latency, sizes    *prometheus.HistogramVec
	running           *prometheus.GaugeVec
	events            *prometheus.CounterVec
	deprecated        *prometheus.GaugeVec
	terminations      *prometheus.CounterVec
	Mutating, Watches atomic.Int64
	conversions       *conversions

	WatchCounts watchCounts

	live   *catalog.Live
	mu     sync.RWMutex
	series map[seriesKey]*series
	kinds  map[kind][]seriesKey // keys of series, by kind
}

// kind identifies a resource in all of its versions.
type kind struct{ group, plural string }

// seriesKey identifies the metrics of requests with the same labels.
type seriesKey struct {
	group, version, plural, subresource, verb string
	code                                      int
	named, namespaced, dryRun, apply          bool
}

// series holds the metrics of requests with the same labels, so that labels are resolved once.
type series struct {
	requests prometheus.Counter
	latency  prometheus.Observer
	sizes    prometheus.Observer // nil if the request is not a get or a list

	// The fields running and events are set only for long-running requests, whose seriesKey has the code 0.
	Running prometheus.Gauge
	events  prometheus.Counter
}

// New returns the metrics of a server for e. inflight is the number of requests in progress. more are the metrics
// of other packages.
func New(e *engine.Engine, inflight *atomic.Int64, gauges []Gauge, more ...prometheus.Collector) *Metrics {
	labels := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	withDryRun := append([]string{"dry_run"}, labels...)
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "Counter of apiserver requests broken out for each verb, dry run value, group, version, " +
				"resource, scope, component, and HTTP response code.",
		}, append([]string{"code"}, withDryRun...)),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_duration_seconds",
			Help: "Response latency distribution in seconds for each verb, dry run value, group, version, " +
				"resource, subresource, scope and component.",
			Buckets: []float64{
				0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
			},
		}, withDryRun),
		sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_response_sizes",
			Help: "Response size distribution in bytes for each group, version, verb, resource, subresource, " +
				"scope and component.",
			Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
		}, labels),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "Gauge of all active long-running apiserver requests broken out by verb, group, version, " +
				"resource, scope and component.",
		}, labels),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_watch_events_total",
			Help: "Number of events sent in watch clients",
		}, []string{"group", "version", "resource"}),
		deprecated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_requested_deprecated_apis",
			Help: "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, " +
				"subresource, and removed_release.",
		}, []string{"group", "version", "resource", "subresource", "removed_release"}),
		terminations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_terminations_total",
			Help: "Number of requests which apiserver terminated in self-defense.",
		}, append(slices.Clone(labels), "code")),
		conversions: newConversions(),
		live:        e.Live,
		series:      map[seriesKey]*series{},
		kinds:       map[kind][]seriesKey{},
	}
	e.Live.OnUpdate(m.prune)
	r := prometheus.NewRegistry()
	r.MustRegister(m.requests, m.latency, m.sizes, m.running, m.events, m.deprecated, m.terminations,
		m.conversions.byCRD, m.conversions.byResult, m.conversions.requests,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&serverCollector{m, e, inflight})
	for _, g := range gauges {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.Name, Help: g.Help}, g.Read))
	}
	r.MustRegister(more...)
	m.Handler = promhttp.HandlerFor(
		prometheus.Gatherers{r, prometheus.GathererFunc(upstreamMetrics)}, promhttp.HandlerOpts{})
	return m
}

// upstreamMetrics returns the metrics of upstream's packages about reloaded configuration files, auditing and
// egress tunnels.
func upstreamMetrics() ([]*dto.MetricFamily, error) {
	all, err := legacyregistry.DefaultGatherer.Gather()
	return slices.DeleteFunc(all, func(m *dto.MetricFamily) bool {
		name := m.GetName()
		return !strings.Contains(name, "_config_controller_") && !strings.HasPrefix(name, "apiserver_audit_") &&
			!strings.HasPrefix(name, "apiserver_egress_dialer_")
	}), err
}

// Observe records a request whose response has been written. It excludes paths that are not served, because a client
// can request any number of them.
func (m *Metrics) Observe(q *request.Request) {
	if q.Kind == nil || q.Status == 0 || q.SkipMetrics {
		return
	}
	k := seriesKey{
		q.Group, q.Version, q.Plural, q.Subresource, q.Verb, q.Status,
		q.Name != "", q.Namespace != "", q.DryRun, q.Apply,
	}
	m.mu.RLock()
	s := m.series[k]
	m.mu.RUnlock()
	if s == nil {
		s = m.seriesFor(k, q.Kind)
	}
	s.requests.Inc()
	s.latency.Observe(time.Since(q.Began).Seconds())
	if s.sizes != nil {
		s.sizes.Observe(float64(q.Size))
	}
}

// seriesFor returns the series of k and creates it if necessary. It does not store the series of a kind that is
// no longer served.
func (m *Metrics) seriesFor(k seriesKey, v *resource.Version) *series {
	m.mu.Lock()
	defer m.mu.Unlock()
	if existing := m.series[k]; existing != nil {
		return existing
	}
	s := m.make(k, v)
	if m.live.Load().Find(k.group, k.version, k.plural) == nil {
		m.remove(k, v.RemovedRelease)
		return s
	}
	m.series[k] = s
	of := kind{k.group, k.plural}
	m.kinds[of] = append(m.kinds[of], k)
	return s
}

func (m *Metrics) make(k seriesKey, v *resource.Version) *series {
	labels := k.labels()
	if k.code == 0 {
		return &series{
			Running: m.running.WithLabelValues(labels...),
			events:  m.events.WithLabelValues(k.group, k.version, k.plural),
		}
	}
	if v.Deprecated {
		m.deprecated.WithLabelValues(k.group, k.version, k.plural, k.subresource, v.RemovedRelease).Set(1)
	}
	s := &series{
		requests: m.requests.WithLabelValues(k.withCode()...),
		latency:  m.latency.WithLabelValues(k.withDryRun()...),
	}
	if labels[0] == "GET" || labels[0] == "LIST" {
		s.sizes = m.sizes.WithLabelValues(labels...)
	}
	return s
}

// remove deletes the metrics of k from the registered vectors.
func (m *Metrics) remove(k seriesKey, removedRelease string) {
	labels := k.labels()
	m.requests.DeleteLabelValues(k.withCode()...)
	m.latency.DeleteLabelValues(k.withDryRun()...)
	m.sizes.DeleteLabelValues(labels...)
	m.running.DeleteLabelValues(labels...)
	m.events.DeleteLabelValues(k.group, k.version, k.plural)
	m.deprecated.DeleteLabelValues(k.group, k.version, k.plural, k.subresource, removedRelease)
}

// prune removes the metrics of all kinds that are not in the catalog c. Otherwise every deleted CRD would leave
// metrics behind.
func (m *Metrics) prune(c *catalog.Catalog) {
	m.mu.RLock()
	var removed []kind
	for k := range m.kinds {
		if c.Definition(k.group, k.plural) == nil {
			removed = append(removed, k)
		}
	}
	m.mu.RUnlock()
	if len(removed) > 0 {
		m.removeKinds(removed)
	}
	m.conversions.prune(c)
}

func (m *Metrics) removeKinds(removed []kind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, of := range removed {
		for _, k := range m.kinds[of] {
			m.remove(k, "") // only built-in kinds have a removed release, and they are never removed
			delete(m.series, k)
		}
		delete(m.kinds, of)
	}
}

func (k *seriesKey) labels() []string {
	return []string{k.verbLabel(), k.group, k.version, k.plural, k.subresource, k.scope(), "apiserver"}
}

func (k *seriesKey) withDryRun() []string {
	dryRun := ""
	if k.dryRun {
		dryRun = "All"
	}
	return append([]string{dryRun}, k.labels()...)
}

func (k *seriesKey) withCode() []string {
	return append([]string{strconv.Itoa(k.code)}, k.withDryRun()...)
}

// verbLabel returns the value of the verb label: the HTTP method, or WATCH, LIST, APPLY or CONNECT.
func (k *seriesKey) verbLabel() string {
	if request.LongRunningSubresources[k.subresource] {
		return "CONNECT"
	}
	switch k.verb {
	case request.VerbGet:
		return "GET"
	case request.VerbList:
		return "LIST"
	case request.VerbWatch:
		return "WATCH"
	case request.VerbCreate:
		return "POST"
	case request.VerbUpdate:
		return "PUT"
	case request.VerbDelete, request.VerbDeleteCollection:
		return "DELETE"
	case request.VerbPatch:
		if k.apply {
			return "APPLY"
		}
		return "PATCH"
	}
	return "OTHER"
}

func (k *seriesKey) scope() string {
	switch {
	case k.named || k.verb == request.VerbCreate:
		return "resource"
	case k.namespaced:
		return "namespace"
	}
	return "cluster"
}

// CountWatch counts a watch that has started and returns the counter of its events. The caller calls done when
// the watch ends.
func (m *Metrics) CountWatch(q *request.Request) (events prometheus.Counter, done func()) {
	s := m.CountLongRunning(q)
	m.Watches.Add(1)
	return s.events, func() {
		s.Running.Dec()
		m.Watches.Add(-1)
	}
}

// CountLongRunning increments the gauge of long-running requests and returns the series that contains it. The
// caller decrements the gauge.
func (m *Metrics) CountLongRunning(q *request.Request) *series {
	s := m.seriesFor(seriesKey{
		group: q.Group, version: q.Version, plural: q.Plural, subresource: q.Subresource, verb: q.Verb,
		named: q.Name != "", namespaced: q.Namespace != "",
	}, q.Kind)
	s.Running.Inc()
	return s
}

// CountTermination counts a request for an API server that is not available. kube-apiserver counts this request in
// no other metric. The label resource is set only if known contains the resource, because a client can request any
// name.
func (m *Metrics) CountTermination(q *request.Request, known *apidiscoveryv2.APIVersionDiscovery) {
	k := seriesKey{group: q.Group, version: q.Version, verb: q.Verb, named: q.Name != "", namespaced: q.Namespace != ""}
	isRequested := func(r apidiscoveryv2.APIResourceDiscovery) bool { return r.Resource == q.Plural }
	if known != nil && slices.ContainsFunc(known.Resources, isRequested) {
		k.plural = q.Plural
	}
	m.terminations.WithLabelValues(append(k.labels()[:6], "aggregator", strconv.Itoa(q.Status))...).Inc()
}

// serverCollector reports metrics that are read from the server on every scrape.
type serverCollector struct {
	metrics  *Metrics
	engine   *engine.Engine
	inflight *atomic.Int64
}

var (
	inflightDesc = prometheus.NewDesc("apiserver_current_inflight_requests",
		"Number of requests that this apiserver is currently serving, by request kind.", []string{"request_kind"}, nil)
	objectsDesc = prometheus.NewDesc("apiserver_storage_objects",
		"Number of stored objects at the time of last check split by kind.", []string{"resource"}, nil)
)

// Describe implements prometheus.Collector.
func (c *serverCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- inflightDesc
	ch <- objectsDesc
}

// Collect implements prometheus.Collector.
func (c *serverCollector) Collect(ch chan<- prometheus.Metric) {
	mutating := c.metrics.Mutating.Load()
	reading := max(0, c.inflight.Load()-mutating-c.metrics.Watches.Load())
	ch <- prometheus.MustNewConstMetric(inflightDesc, prometheus.GaugeValue, float64(mutating), "mutating")
	ch <- prometheus.MustNewConstMetric(inflightDesc, prometheus.GaugeValue, float64(reading), "readOnly")
	head := c.engine.Store.Head()
	for d := range c.engine.Live.Load().Definitions() {
		if !d.Stored() {
			continue
		}
		name := d.Names.Plural
		if d.Group != "" {
			name += "." + d.Group
		}
		ch <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, float64(head.Count(d.Prefix, "")), name)
	}
}
