// Package testserver is a Trellis server in the process of a Go test, in one line. It knows
// tests and apiserver, nothing below.
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
	"github.com/trellis-k8s/trellis/internal/controllers"
)

// Server is a running server that ends with its test.
type Server struct {
	// Config is for an administrator's client over HTTPS, without a rate limit. Each call that
	// changes it should copy it first.
	Config *rest.Config
	// Kubeconfig is the path of a file that says the same.
	Kubeconfig string

	t       testing.TB
	config  apiserver.Config
	running *apiserver.Server
	audit   string // file of the record of requests, if there is one

	nodes     []*nodes // that are simulated
	nodeCount int
	podCount  atomic.Uint32 // of addresses that Pods have been given
}

// Option changes how a server is started.
type Option func(*Server)

// OnDisk keeps the server's state in a temporary folder of the test, so that Restart
// finds it again; without it everything is in memory.
func OnDisk() Option {
	return func(s *Server) { s.config.DataDir = s.t.TempDir() }
}

// LocalServices permits Services of type ExternalName, each as NAMESPACE/NAME, to lead to a loopback address, where a test serves a
// webhook or an API.
func LocalServices(names ...string) Option {
	return func(s *Server) { s.config.LocalServices = append(s.config.LocalServices, names...) }
}

// With changes the server's configuration before it starts.
func With(change func(*apiserver.Config)) Option {
	return func(s *Server) { change(&s.config) }
}

// Start starts a server on a free port of the loopback interface and stops it when
// the test is over. It ends the test if there is none to be had.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	s := &Server{t: t, config: apiserver.Config{Controllers: []string{controllers.AggregateRoles}}}
	s.config.Authentication.Anonymous = true
	s.config.Admission.Disable = []string{"ServiceAccount"} // as no controller makes the accounts that it looks for
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

// Stop shuts the server down; the test fails if that does not go cleanly. A second
// call does nothing.
func (s *Server) Stop() {
	s.t.Helper()
	if s.running == nil {
		return
	}
	for _, n := range s.nodes {
		n.stop()
		n.running.Wait()
		_ = n.writes.Wait() // none fails
	}
	running := s.running
	s.running = nil
	s.leave()
	if err := running.Shutdown(); err != nil {
		s.t.Errorf("testserver: shut down: %v", err)
	}
}

// leave closes the connections of the test's clients that are idle: the server tells them to go, and grants them a second.
func (s *Server) leave() {
	if client, err := rest.TransportFor(s.Config); err == nil { // the clients' own: client-go keeps one for a Config
		utilnet.CloseIdleConnectionsFor(client)
	}
}

// Restart shuts a server on disk down and starts it again on the same data and the same
// address, so that clients find it again.
func (s *Server) Restart() {
	s.t.Helper()
	if s.config.DataDir == "" {
		s.t.Fatal("testserver: Restart needs OnDisk: a server in memory would forget everything")
	}
	if s.running != nil {
		s.config.Address = s.running.Address()
	}
	s.Stop()
	s.start()
}
