package agent

import (
	"maps"
	"slices"
	"time"
)

const (
	drainTimeout      = 25 * time.Second       // for connections to end; a Pod has 30 seconds by default
	drainPollInterval = 500 * time.Millisecond // how often they are counted; a dial that was on its way then has come
)

// drain asks all servers for no new connections, and ends the sessions: each with its last connection, or all when the limit is reached.
// Until then it waits as well for destinations to take what came for them. It is called after run has returned.
func (s *servers) drain() {
	end := time.Now().Add(drainTimeout)
	late := time.AfterFunc(drainTimeout, func() {
		for _, x := range s.allSessions() {
			x.Close()
		}
	})
	defer late.Stop()
	for _, x := range s.allSessions() {
		x.Drain()
		s.tasks.Go(func() { _ = x.CloseWhenIdle() })
	}
	s.tasks.Wait()
	for s.metrics.openConns.Load() > 0 && time.Now().Before(end) { // a socket outlives its tunnel as long as it has something to write
		<-time.After(drainPollInterval)
	}
}

// allSessions are the sessions that have not ended.
func (s *servers) allSessions() []session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(slices.Collect(maps.Values(s.sessions)), maps.Keys(s.draining))
}
