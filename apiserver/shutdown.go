package apiserver

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// Shutdown takes no new request, lets those in flight finish, ends the watches, and
// closes the store. It may be called more than once and returns what had failed, if anything.
func (s *Server) Shutdown() error { return s.closed() }

func (s *Server) close() error {
	s.stopLoops()
	s.loops.Wait()
	var err error
	if s.http != nil {
		err = s.drain()
	} else if s.listener != nil {
		err = s.listener.Close()
	}
	if s.webhooks != nil {
		s.webhooks.Close()
	}
	s.stopFollowing()
	s.following.Wait()
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	err = errors.Join(err, s.audit.Close())
	select {
	case <-s.failed:
		return errors.Join(s.failure, err)
	default:
		return err
	}
}

// drain closes the listener and waits for the requests. Watches would never end by
// themselves, so the handler ends them meanwhile.
func (s *Server) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownPatience)
	defer cancel()
	go s.handler.Drain()
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests in flight did not finish in %s: %w", shutdownPatience, err), s.http.Close())
	}
	return nil
}

// fail records the first reason why the server cannot go on.
func (s *Server) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = err
		close(s.failed)
	})
}

func pool(keys *pki.Bundle) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(keys.CA)
	return p
}
