// Package server is the end of a Konnectivity tunnel beside the API server: fronts dial through it, by the agents that are connected.
package server

import (
	"context"
	"net"
	"time"
)

// Mode is how fronts speak to the server.
type Mode string

const (
	ModeGRPC        Mode = "grpc"
	ModeHTTPConnect Mode = "http-connect"
)

// Options say how a Server behaves.
type Options struct {
	ID                                   string
	Count                                int
	Strategies                           []Strategy
	Authenticate                         func(ctx context.Context, token string) error
	DialTimeout                          time.Duration
	KeepaliveTime, FrontendKeepaliveTime time.Duration
	Metrics                              *Metrics
}

// Server stands here until there is one.
type Server struct{ done chan struct{} }

// New returns a Server.
func New(Options) *Server { return &Server{make(chan struct{})} }

// ServeAgents accepts nothing.
func (s *Server) ServeAgents(l net.Listener) error { return s.wait(l) }

// ServeFronts accepts nothing.
func (s *Server) ServeFronts(l net.Listener, _ Mode) error { return s.wait(l) }

func (s *Server) wait(l net.Listener) error {
	<-s.done
	return l.Close()
}

// Ready is false.
func (s *Server) Ready() bool { return false }

// Shutdown ends it.
func (s *Server) Shutdown(context.Context) { close(s.done) }
