package agent

import (
	"maps"
	"slices"
	"time"
)

const (
	// drainTimeout limits the time for connections to end. By default, a Pod has 30 seconds to terminate.
	drainTimeout = 25 * time.Second
	// drainPollInterval is the interval at which connections are counted. It is long enough for a dial request in
	// transit to arrive.
	drainPollInterval = 500 * time.Millisecond
)

// drain sends DRAIN to all servers, so that they request no more connections. It ends each session with its
// last connection, or all sessions after drainTimeout. Until then, it also waits for destinations to receive
// the data sent to them. It must be called after run has returned.
func (s *servers) drain() {
	deadline := time.Now().Add(drainTimeout)
	timer := time.AfterFunc(drainTimeout, func() {
		for _, session := range s.allSessions() {
			session.Close()
		}
	})
	defer timer.Stop()
	for _, session := range s.allSessions() {
		session.Drain()
		s.tasks.Go(func() { _ = session.CloseWhenIdle() })
	}
	s.tasks.Wait()
	// A socket with data to write stays open after its tunnel has ended.
	for s.metrics.openConns.Load() > 0 && time.Now().Before(deadline) {
		<-time.After(drainPollInterval)
	}
}

// allSessions returns the sessions that have not ended.
func (s *servers) allSessions() []session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(slices.Collect(maps.Values(s.sessions)), maps.Keys(s.draining))
}
