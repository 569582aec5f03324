package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
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
	if s.aggregator != nil {
		s.aggregator.Close()
	}
	s.disbelieve()
	s.believing.Wait()
	if s.engine != nil {
		s.engine.Close()
	}
	if s.webhooks != nil {
		s.webhooks.Close()
	}
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
	s.draining.Store(true)
	go s.handler.Drain()
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests in flight did not finish in %s: %w", shutdownPatience, err), s.http.Close())
	}
	return nil
}

// latePatience is how long a connection may be idle that nobody has told to go away.
const latePatience = time.Second

// sendAwayLate closes connections whose handshake ended after the server had begun to shut down: net/http tells only those of
// HTTP/2 to go away that it knows by then, and would wait for the others until they leave by themselves.
func (s *Server) sendAwayLate(c net.Conn, state http.ConnState) {
	if state == http.StateIdle && s.draining.Load() {
		time.AfterFunc(latePatience, func() { _ = c.Close() })
	}
}

// fail records the first reason why the server cannot go on.
func (s *Server) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = err
		close(s.failed)
	})
}
