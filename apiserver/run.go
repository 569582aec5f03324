package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/trellis-k8s/trellis/internal/controllers/bootstrap"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
	"github.com/trellis-k8s/trellis/internal/serving"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// run serves requests of clients and starts the loops.
func (s *Server) run(context.Context) error {
	go func() {
		if err := s.http.Serve(); err != nil {
			s.fail(err)
		}
	}()
	s.runLoops()
	return s.writeKubeconfig()
}

func (s *Server) runLoops() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stopLoops = cancel
	ctx = upstream.WithLogger(ctx, s.config.Logger)
	s.loops.Go(func() {
		// A server with a failed store continues until it is restarted, so that all clients get a 410 and list again.
		if err := s.feed.Run(ctx); ctx.Err() == nil && !errors.Is(err, storage.ErrFailed) {
			s.fail(fmt.Errorf("send changes to the controllers: %w", err))
		}
	})
	s.loops.Go(func() { s.authorizer.Run(ctx, s.report) })
	s.certificates.Run(ctx)
	s.loops.Go(func() { s.egressSelector.Run(ctx) })
	for _, certificate := range []*dynamiccertificates.DynamicCertKeyPairContent{s.proxyClient, s.kubeletClient} {
		if certificate != nil {
			s.loops.Go(func() { certificate.Run(ctx, 1) })
		}
	}
	s.runPeriodically(ctx, serving.RenewalCheck, "cannot renew the server's own certificates", s.renewKeys)
	s.runPeriodically(ctx, priorityInterval, "cannot reconcile the flow control objects",
		func() error { return bootstrap.ReconcileFlowControl(ctx, s.client) })
	s.runPeriodically(ctx, namespacesInterval, "cannot create the system namespaces",
		func() error { return s.systemNamespaces(ctx) })
	s.runPresence(ctx)
	s.runControllers(ctx)
}

// writeDangling updates the condition Dangling of all FlowSchemas. It does nothing if API Priority and Fairness is
// disabled.
func (s *Server) writeDangling(ctx context.Context) error {
	if s.config.Fairness.Disabled {
		return nil
	}
	return bootstrap.WriteDangling(ctx, s.client.FlowcontrolV1())
}

// priorityInterval is the interval at which the flow control objects are reconciled, as in kube-apiserver.
const priorityInterval = time.Minute

// runPeriodically calls the function do periodically until ctx is done. If the function fails, it logs its error with
// the message in failure.
func (s *Server) runPeriodically(ctx context.Context, period time.Duration, failure string, do func() error) {
	s.loops.Go(serving.Every(ctx, s.config.Clock, period, func() {
		if err := do(); err != nil && ctx.Err() == nil {
			s.config.Logger.Error(failure, "error", err)
		}
	}))
}
