// Package testserver starts a Trellis server in the process of a Go test. It imports testing and apiserver, and must
// not import the internal packages of the server, except for the names of controllers.
package testserver

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
)

// Server is a running server that is stopped at the end of its test.
type Server struct {
	// Config is the configuration of an administrator's client over HTTPS, without a rate limit. Callers must copy it
	// before they change it.
	Config *rest.Config
	// Kubeconfig is the path of a kubeconfig file with the same configuration.
	Kubeconfig string

	t       testing.TB
	config  apiserver.Config
	running *apiserver.Server
	audit   string // path of the audit log; "" means that the option Recording is not set

	nodes     []*nodes // simulated nodes
	nodeCount int
	podCount  atomic.Uint32 // number of allocated Pod addresses
}

// Option changes the configuration of a server before it starts.
type Option func(*Server)

// OnDisk stores the server's state in a temporary directory of the test. Restart requires this option. By default all
// state is in memory.
func OnDisk() Option {
	return func(s *Server) { s.config.DataDir = s.t.TempDir() }
}

// LocalServices permits Services of type ExternalName to resolve to a loopback address. Each item has the form
// NAMESPACE/NAME. A test can serve a webhook or an aggregated API at this address.
func LocalServices(names ...string) Option {
	return func(s *Server) { s.config.LocalServices = append(s.config.LocalServices, names...) }
}

// With calls the function change with the configuration of the server, before the server starts.
func With(change func(*apiserver.Config)) Option {
	return func(s *Server) { change(&s.config) }
}

// Start starts a server on a free port of the loopback interface and stops it at the end of the test. If the start
// fails, Start fails the test.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	s := &Server{t: t, config: apiserver.Config{Controllers: []string{upstream.ClusterRoleAggregation}}}
	s.config.Authentication.Anonymous = true
	// the controller that creates default service accounts does not run
	s.config.Admission.Disable = []string{"ServiceAccount"}
	for _, o := range options {
		o(s)
	}
	s.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	s.start()
	t.Cleanup(s.Stop)
	return s
}

func (s *Server) start() {
	s.t.Helper()
	running, err := apiserver.Start(context.Background(), s.config)
	if err != nil {
		s.t.Fatalf("testserver: %v", err)
	}
	s.running = running
	s.Config = running.ClientConfig()
	s.Config.QPS = -1
	if err := os.WriteFile(s.Kubeconfig, running.Kubeconfig(), 0o600); err != nil {
		s.t.Fatalf("testserver: %v", err)
	}
	for _, n := range s.nodes {
		n.run()
	}
}

// Stop shuts the server down. The test fails if the shutdown returns an error. A second call does nothing.
func (s *Server) Stop() {
	s.t.Helper()
	if s.running == nil {
		return
	}
	for _, n := range s.nodes {
		n.stop()
		n.running.Wait()
		_ = n.writes.Wait() // the functions return nil
	}
	running := s.running
	s.running = nil
	s.closeIdleConnections()
	if err := running.Shutdown(); err != nil {
		s.t.Errorf("testserver: shut down: %v", err)
	}
}

// closeIdleConnections closes the idle connections of the test's clients. Otherwise the shutdown of the server waits a
// second for the clients to react to GOAWAY.
func (s *Server) closeIdleConnections() {
	if client, err := rest.TransportFor(s.Config); err == nil { // client-go caches one transport for each Config
		utilnet.CloseIdleConnectionsFor(client)
	}
}

// Restart shuts down a server and starts it again with the same data and the same address, so that existing clients
// reconnect. It requires the option OnDisk.
func (s *Server) Restart() {
	s.t.Helper()
	if s.config.DataDir == "" {
		s.t.Fatal("testserver: Restart requires the option OnDisk: a server in memory loses its state")
	}
	if s.running != nil {
		s.config.Address = s.running.Address()
	}
	s.Stop()
	s.start()
}
