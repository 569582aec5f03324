// Package api serves the Kubernetes API over HTTP. Its pipeline runs the steps of all requests. The steps are in
// package filters, the verbs in package handlers, and both work on the state in package request. These packages must
// not import storage.
package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/aggregation"
	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/api/filters"
	"github.com/trellis-k8s/trellis/internal/api/handlers"
	"github.com/trellis-k8s/trellis/internal/api/health"
	"github.com/trellis-k8s/trellis/internal/api/metrics"
	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/engine"
)

// Config holds the parts and settings of a Server.
type Config struct {
	Engine        *engine.Engine
	Authenticator *access.Authenticator
	Authorizer    access.Authorizer
	Fairness      *flowcontrol.Controller // API Priority and Fairness; nil admits every request
	Discovery     http.Handler            // serves the discovery documents at /api, /apis and below
	OpenAPI       http.Handler            // serves /openapi/v2, /openapi/v3 and below
	Aggregator    *aggregation.Aggregator // proxies requests to other API servers; nil disables aggregation
	Connect       handlers.Connector
	Issuer        http.Handler         // serves the documents of the service account issuer; nil disables them
	Live, Ready   []health.Check       // served at /livez and /readyz, in addition to ping
	Gauges        []metrics.Gauge      // served at /metrics, in addition to the Server's own metrics
	Egress        prometheus.Collector // metrics of outgoing connections, or nil
	Barriers      *metrics.Durations   // waits of writes for other servers, or nil
	EnableCBOR    bool
	Profiling     bool          // serve /debug/pprof
	Audit         filters.Audit // audit policy and sink; the caller of New starts and stops the sink
	// RequestTimeout is the timeout of all requests except long-running ones such as watches; 0 means a minute.
	RequestTimeout time.Duration
	// MemoryBudget is the memory in bytes for the bodies of all requests in progress; 0 means 1 GiB.
	MemoryBudget int64
	// Valid returns an error while the kinds and roles of this server may be outdated, because other servers no longer
	// wait for it or the store has failed. The server then answers with 503, or with 410 if the client must list again.
	// nil means that the server is always valid.
	Valid func() error
}

// Server is the HTTP handler of the API server. All methods are safe for concurrent use.
type Server struct {
	limits       *request.Limits
	negotiator   *encoding.Negotiator
	metrics      *metrics.Metrics
	filters      *filters.Filters
	handlers     *handlers.Handlers
	nonResources *health.Handler
	pipeline     []func(*request.Request) bool // result of steps

	valid    func() error // Config.Valid
	inflight atomic.Int64
	serving  context.Context // canceled by Drain, which ends the watches
	stop     context.CancelFunc
	idle     chan struct{} // gets a value when the last request of a draining server ends
}

// New returns a Server for c.
func New(c Config) *Server {
	s := &Server{
		limits:     request.NewLimits(c.RequestTimeout, c.MemoryBudget),
		negotiator: encoding.NewNegotiator(c.EnableCBOR),
		valid:      c.Valid,
		idle:       make(chan struct{}, 1),
	}
	s.serving, s.stop = context.WithCancel(context.Background())
	var collectors []prometheus.Collector
	if c.Egress != nil {
		collectors = append(collectors, c.Egress)
	}
	if c.Barriers != nil {
		collectors = append(collectors, c.Barriers)
	}
	if c.Fairness != nil {
		collectors = append(collectors, c.Fairness)
	}
	if c.Aggregator != nil {
		collectors = append(collectors, c.Aggregator)
	}
	s.metrics = metrics.New(c.Engine, &s.inflight, c.Gauges, collectors...)
	s.filters = &filters.Filters{
		Engine: c.Engine, Authenticator: c.Authenticator, Authorizer: c.Authorizer,
		Fairness: c.Fairness, Auditing: c.Audit, EnableCBOR: c.EnableCBOR, Serving: s.serving,
		Impersonator: filters.Impersonator(c.Authorizer),
	}
	s.handlers = &handlers.Handlers{
		Engine: c.Engine, Authorizer: c.Authorizer, Fairness: c.Fairness, Aggregator: c.Aggregator,
		Connector: c.Connect, Metrics: s.metrics, Serving: s.serving,
	}
	s.nonResources = &health.Handler{
		Discovery: c.Discovery, OpenAPI: c.OpenAPI, Issuer: c.Issuer, Metrics: s.metrics.Handler,
		Fairness: c.Fairness, Live: c.Engine.Live, Livez: c.Live, Profiling: c.Profiling,
		Readyz: append(slices.Clone(c.Ready), health.Check{Name: "shutdown", Run: s.shuttingDown}),
	}
	s.pipeline = s.steps()
	return s
}

// shuttingDown returns an error after Drain has been called.
func (s *Server) shuttingDown() error {
	if s.serving.Err() != nil {
		return errors.New("process is shutting down")
	}
	return nil
}

// ObserveConversion records a call to a conversion webhook in the metrics.
func (s *Server) ObserveConversion(c conversion.Call) { s.metrics.ObserveConversion(c) }

// Loopback returns a transport for clients in this process. It calls the server as user u, without a network
// connection.
func (s *Server) Loopback(u user.Info) http.RoundTripper { return &loopback{s, u} }

// Drain rejects new requests, ends all watches and blocks until the requests in flight have ended. Later calls also
// block until then.
func (s *Server) Drain() {
	s.stop()
	for s.inflight.Load() > 0 {
		<-s.idle
	}
	select {
	case s.idle <- struct{}{}: // wakes the next caller of Drain
	default:
	}
}
