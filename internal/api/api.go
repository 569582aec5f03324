// Package api is HTTP to engine and back: routes, middleware, negotiation,
// tables, watch streams, health and metrics. It knows no storage.
package api

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/engine"
)

// Check is one health check.
type Check struct {
	Name string
	Run  func() error
}

// Config is what a Server is made of.
type Config struct {
	Engine        *engine.Engine
	Authenticator *access.Authenticator
	Authorizer    *access.Authorizer
	Discovery     http.Handler // /api, /apis and below, where no resource is addressed
	OpenAPI       http.Handler // /openapi/v2, /openapi/v3 and below
	Live, Ready   []Check      // of /livez and /readyz, besides ping
	EnableCBOR    bool
}

// Server answers all requests.
type Server struct{}

// New makes a Server.
func New(c Config) *Server { panic("api: New") }

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { panic("api: ServeHTTP") }

// Loopback is a transport for clients in this process: it calls the server without a
// connection, as u.
func (s *Server) Loopback(u user.Info) http.RoundTripper { panic("api: Loopback") }

// Drain refuses new requests, ends the watches and waits until requests in flight are done.
func (s *Server) Drain() { panic("api: Drain") }
