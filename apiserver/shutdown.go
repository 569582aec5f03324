package apiserver

import "errors"

// Shutdown takes no new request, lets those in flight finish, ends the watches, and
// closes the store. It may be called more than once and returns what had failed, if anything.
func (s *Server) Shutdown() error { return s.closed() }

func (s *Server) close() error {
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
	s.disbelieve()
	s.believing.Wait()
	if s.engine != nil {
		s.engine.Close()
	}
	s.hangUp()
	if s.webhooks != nil {
		s.webhooks.Close()
	}
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	s.audit.close()
	if s.ways != nil {
		s.ways.Close()
	}
	select {
	case <-s.failed:
		return errors.Join(s.failure, err)
	default:
		return err
	}
}

// fail records the first reason why the server cannot go on.
func (s *Server) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = err
		close(s.failed)
	})
}
