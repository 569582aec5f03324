// Package api is HTTP to engine and back: routes, middleware, negotiation,
// tables, watch streams, health and metrics. It knows no storage.
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

// Check is one health check.
type Check struct {
	Name string
	Run  func() error
}

// Gauge is a metric that is read when it is asked for.
type Gauge struct {
	Name, Help string
	Read       func() float64
}

// Config is what a Server is made of.
type Config struct {
	Engine        *engine.Engine
	Authenticator *access.Authenticator
	Authorizer    access.Authorizer
	Fairness      *flowcontrol.Controller // whose turn it is; nil: everybody's
	Discovery     http.Handler            // /api, /apis and below, where no resource is addressed
	OpenAPI       http.Handler            // /openapi/v2, /openapi/v3 and below
	Aggregator    *aggregation.Aggregator // of what other servers serve; nil: none does
	// Connect finds who answers a request that leads to a node, a Pod or what runs in it: by the name of an object, which may have more
	// around it, and options in their internal form. fail answers where they do not. nil: nobody does.
	Connect     func(ctx context.Context, namespace, name string, options runtime.Object, fail func(http.ResponseWriter, *http.Request, error)) (http.Handler, error)
	Issuer      http.Handler         // further paths: documents of who makes tokens of service accounts; nil: there are none
	Live, Ready []Check              // of /livez and /readyz, besides ping
	Gauges      []Gauge              // in /metrics, besides its own
	Egress      prometheus.Collector // the same, of what leaves the server; nil: nothing does
	EnableCBOR  bool
	Profiling   bool  // serve /debug/pprof
	Audit       Audit // the caller runs its Sink
	// RequestTimeout bounds what a request that is no watch may wait for; 0 means a minute.
	RequestTimeout time.Duration
	// MemoryBudget is the memory in bytes for request bodies in work; 0 means 1 GiB.
	MemoryBudget int64
}

// Server answers all requests. All methods may be called from any goroutine.
type Server struct {
	engine       *engine.Engine
	live         *resource.Live
	config       Config
	offers       []offer // media types, the preferred first
	choices      choices // of them
	metrics      *metrics
	watchCounts  watchCounts
	impersonator http.Handler
	budget       budget
	slots        *compute.Slots  // of expensive requests
	waiting      *compute.Budget // for slots, and for the rest of bodies

	inflight atomic.Int64
	draining atomic.Bool
	serving  context.Context // until Drain: then watches end
	stop     context.CancelFunc
	idle     chan struct{} // receives when the last request in flight of a draining server is done
}

// New makes a Server.
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
	s.waiting = compute.NewBudget(s.budget.size / waitingShare)
	s.slots = compute.NewSlots(goruntime.GOMAXPROCS(0), s.waiting)
	if c.RequestTimeout == 0 {
		s.config.RequestTimeout = requestTimeout
	}
	s.serving, s.stop = context.WithCancel(context.Background())
	s.metrics = newMetrics(s)
	return s
}

// patience is how long a write, or the body of any request, may take.
func (s *Server) patience() time.Duration { return min(writePatience, s.config.RequestTimeout) }

// Loopback is a transport for clients in this process: it calls the server without a
// connection, as u.
func (s *Server) Loopback(u user.Info) http.RoundTripper { return &loopback{s, u} }

// Drain refuses new requests, ends the watches and waits until requests in flight are done.
// A second call waits as well.
func (s *Server) Drain() {
	if s.draining.CompareAndSwap(false, true) {
		s.stop()
	}
	for s.inflight.Load() > 0 {
		<-s.idle
	}
	select {
	case s.idle <- struct{}{}: // for the next who drains
	default:
	}
}
