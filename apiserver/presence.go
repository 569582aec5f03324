package apiserver

import (
	"context"
	"fmt"
	"net"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver/endpoints"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
	"github.com/trellis-k8s/trellis/internal/kinds/services"
)

const addressInterval, presenceTimeout = 10 * time.Second, 5 * time.Second // the interval is kube-apiserver's

// openPresence creates the client and the endpoints that announce this server to clients and to other servers.
func (s *Server) openPresence() (err error) {
	config := s.Loopback()
	config.UserAgent, config.Timeout = "kube-apiserver", presenceTimeout
	config.WarningHandler = rest.NoWarnings{}
	if s.presence, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("create client for the objects that announce the server: %w", err)
	}
	c := endpoints.Config{
		Client: s.presence, IP: s.advertisedIP(), Port: int32(s.listener.Addr().(*net.TCPAddr).Port),
		ServiceIP: services.ServerIP(s.config.ServiceClusterIPRanges[0]),
		NoSlices:  !s.serves(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")),
	}
	if s.etcd != nil {
		c.Shared = s.store
	}
	s.endpoints = endpoints.New(c)
	return nil
}

// runPresence announces the server until the shutdown begins.
func (s *Server) runPresence(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	ctx = upstream.WithLogger(ctx, s.config.Logger)
	s.loops.Go(func() {
		<-s.unready
		stop()
		if err := s.endpoints.Withdraw(); err != nil {
			s.config.Logger.Error("cannot remove the endpoint of the server", "error", err)
		}
	})
	s.runPeriodically(ctx, addressInterval, "cannot update the Service kubernetes",
		func() error { return s.endpoints.Renew(ctx) })
	if !s.serves(coordinationv1.SchemeGroupVersion.WithResource("leases")) {
		return
	}
	s.hooks.done(nil, hookIdentity, hookIdentityCollector)
	s.loops.Go(func() {
		if err := upstream.RunIdentity(ctx, s.presence); err != nil {
			s.config.Logger.Error("cannot create the Lease of the server", "error", err)
			s.hooks.done(err, hookIdentity)
		}
	})
	s.loops.Go(func() { upstream.RunIdentityCollector(ctx, s.client) })
}
