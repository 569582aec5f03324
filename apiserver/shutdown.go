package apiserver

import (
	"context"
	"errors"
)

// Shutdown makes /readyz fail. After Config.ShutdownDelay it stops accepting requests, waits for the requests in
// flight, ends the watches and closes the store. It may be called more than once. It returns the error that stopped the
// server or that occurred during the shutdown, if any.
func (s *Server) Shutdown() error { return s.closed() }

func (s *Server) close() error {
	close(s.unready)
	if s.http != nil && s.config.ShutdownDelay > 0 {
		select {
		case <-s.config.Clock.After(s.config.ShutdownDelay):
		case <-s.failed.Done():
		}
	}
	close(s.stopping)
	s.stopLoops()
	s.loops.Wait()
	var err error
	if s.http != nil {
		err = s.http.Drain(s.handler.Drain)
	} else if s.listener != nil {
		err = s.listener.Close()
	}
	close(s.drained)
	if s.aggregator != nil {
		s.aggregator.Close()
	}
	if s.nodes != nil {
		s.nodes.Close()
	}
	s.stopAuthReload()
	s.authReload.Wait()
	if s.engine != nil {
		s.engine.Close()
	}
	s.closeWebhooks()
	if s.webhooks != nil {
		s.webhooks.Close()
	}
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	s.audit.close()
	if s.egressSelector != nil {
		s.egressSelector.Close()
	}
	return errors.Join(context.Cause(s.failed), err)
}

// checkRunning returns an error when the shutdown has begun.
func (s *Server) checkRunning() error {
	select {
	case <-s.unready:
		return errors.New("process is shutting down")
	default:
		return nil
	}
}
