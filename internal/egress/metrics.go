package egress

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"
)

// Metrics counts the requests of Transports by destination, and exports the states of their circuit breakers.
// Metrics that also exist upstream have the same names.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec

	mu         sync.Mutex
	transports map[*Transport]struct{} // the open ones
}

var breakersDesc = prometheus.NewDesc("trellis_egress_circuit_breakers",
	"Number of circuit breakers for outgoing requests, by kind of request, host and state.",
	[]string{"name", "host", "state"}, nil)

// NewMetrics returns empty Metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		transports: map[*Transport]struct{}{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total",
			Help: "Number of HTTP requests, partitioned by status code, method, and host.",
		}, []string{"code", "method", "host"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rest_client_request_duration_seconds",
			Help:    "Request latency in seconds. Broken down by verb, and host.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0},
		}, []string{"verb", "host"}),
	}
}

func (m *Metrics) add(t *Transport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.transports[t] = struct{}{}
}

// remove deletes the metrics of a host that has no Transport left. Otherwise their number would grow without limit.
func (m *Metrics) remove(t *Transport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.transports, t)
	for other := range m.transports {
		if other.host == t.host {
			return
		}
	}
	host := prometheus.Labels{"host": t.host}
	m.requests.DeletePartialMatch(host)
	m.duration.DeletePartialMatch(host)
}

// methods lists the HTTP methods that have their own label value. All other methods share one value.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodOptions}

// observe counts a request when its response header has arrived or it has failed. resp is nil if the request
// failed.
func (m *Metrics) observe(t *Transport, method string, resp *http.Response, took time.Duration) {
	code := "<error>"
	if resp != nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	if !slices.Contains(methods, method) { // clients may send any method, so the label values must be limited
		method = "OTHER"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, open := m.transports[t]; open {
		m.requests.WithLabelValues(code, method, t.host).Inc()
		m.duration.WithLabelValues(method, t.host).Observe(took.Seconds())
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.requests.Describe(ch)
	m.duration.Describe(ch)
	ch <- breakersDesc
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.requests.Collect(ch)
	m.duration.Collect(ch)
	breakers := map[[3]string]float64{} // by the labels of breakersDesc
	m.mu.Lock()
	for t := range m.transports {
		for _, s := range []gobreaker.State{gobreaker.StateClosed, gobreaker.StateHalfOpen, gobreaker.StateOpen} {
			breakers[[3]string{t.options.Name, t.host, s.String()}] += 0
		}
		breakers[[3]string{t.options.Name, t.host, t.breaker.state().String()}]++
	}
	m.mu.Unlock()
	for labels, n := range breakers {
		ch <- prometheus.MustNewConstMetric(breakersDesc, prometheus.GaugeValue, n, labels[:]...)
	}
}
