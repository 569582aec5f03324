// Package api serves the Kubernetes API over HTTP. It contains routing, middleware, content negotiation, tables,
// watch streams, health checks and metrics, and calls the engine. It must not import storage.
package api

import (
	"context"
	"net/http"
	goruntime "runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/aggregation"
	"github.com/trellis-k8s/trellis/internal/compute"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Check is a named health check.
type Check struct {
	Name string
	Run  func() error
}

// Gauge is a metric whose value is read on every scrape.
type Gauge struct {
	Name, Help string
	Read       func() float64
}

// Config holds the parts and settings of a Server.
type Config struct {
	Engine        *engine.Engine
	Authenticator *access.Authenticator
	Authorizer    access.Authorizer
	Fairness      *flowcontrol.Controller // API Priority and Fairness; nil admits every request
	Discovery     http.Handler            // serves the discovery documents at /api, /apis and below
	OpenAPI       http.Handler            // serves /openapi/v2, /openapi/v3 and below
	Aggregator    *aggregation.Aggregator // proxies requests to other API servers; nil disables aggregation
	// Connect returns the handler that proxies a request to a node, a Pod or a container. name is the object's name
	// in the path and can include a scheme and a port. options are the query options as an internal type. The
	// handler calls fail to write an error. If Connect is nil, the subresources that need it return 404.
	Connect func(ctx context.Context, namespace, name string, options runtime.Object,
		fail func(http.ResponseWriter, *http.Request, error)) (http.Handler, error)
	Issuer      http.Handler         // serves the documents of the service account issuer; nil disables them
	Live, Ready []Check              // served at /livez and /readyz, in addition to ping
	Gauges      []Gauge              // served at /metrics, in addition to the Server's own metrics
	Egress      prometheus.Collector // metrics of outgoing connections, or nil
	EnableCBOR  bool
	Profiling   bool  // serve /debug/pprof
	Audit       Audit // audit policy and sink; the caller of New starts and stops the sink
	// RequestTimeout is the timeout of all requests except long-running ones such as watches; 0 means a minute.
	RequestTimeout time.Duration
	// MemoryBudget is the memory in bytes for the bodies of all requests in progress; 0 means 1 GiB.
	MemoryBudget int64
}

// Server is the HTTP handler of the API server. All methods are safe for concurrent use.
type Server struct {
	engine        *engine.Engine
	live          *resource.Live
	config        Config
	offers        []offer // media types that the server supports, in order of preference
	mediaCache    mediaCache
	metrics       *metrics
	watchCounts   watchCounts
	impersonator  http.Handler
	budget        budget
	slots         *compute.Slots  // limit the number of expensive requests that run at once
	waitingMemory *compute.Budget // memory of requests that wait for a slot or for the rest of their body

	inflight atomic.Int64
	draining atomic.Bool
	serving  context.Context // canceled by Drain, which ends the watches
	stop     context.CancelFunc
	idle     chan struct{} // gets a value when the last request of a draining server ends
}

// New returns a Server for c.
func New(c Config) *Server {
	s := &Server{
		engine:       c.Engine,
		live:         c.Engine.Live,
		config:       c,
		offers:       offers(c.EnableCBOR),
		idle:         make(chan struct{}, 1),
		impersonator: impersonator(c.Authorizer),
		budget:       newBudget(c.MemoryBudget),
	}
	s.waitingMemory = compute.NewBudget(s.budget.size / waitingShare)
	s.slots = compute.NewSlots(goruntime.GOMAXPROCS(0), s.waitingMemory)
	if c.RequestTimeout == 0 {
		s.config.RequestTimeout = defaultRequestTimeout
	}
	s.serving, s.stop = context.WithCancel(context.Background())
	s.metrics = newMetrics(s)
	return s
}

// writeTimeout returns the timeout of writes. It is also the timeout for reading a request body.
func (s *Server) writeTimeout() time.Duration { return min(maxWriteTimeout, s.config.RequestTimeout) }

// Loopback returns a transport for clients in this process. It calls the server as user u, without a network
// connection.
func (s *Server) Loopback(u user.Info) http.RoundTripper { return &loopback{s, u} }

// Drain rejects new requests, ends all watches and blocks until the requests in flight have ended. Later calls also
// block until then.
func (s *Server) Drain() {
	if s.draining.CompareAndSwap(false, true) {
		s.stop()
	}
	for s.inflight.Load() > 0 {
		<-s.idle
	}
	select {
	case s.idle <- struct{}{}: // wakes the next caller of Drain
	default:
	}
}
