package agent

import (
	"maps"
	"slices"
	"time"
)

const (
	drainLimit = 25 * time.Second       // for connections to end; a Pod has 30 seconds by default
	drainPoll  = 500 * time.Millisecond // how often they are counted; a dial that was on its way then has come
)

// drain asks all servers for no new connections, waits until none is open or the limit is reached, and ends the sessions.
// It is called after run has returned.
func (s *servers) drain() {
	for _, x := range s.all() {
		x.Drain()
	}
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for end := time.Now().Add(drainLimit); len(s.all()) > 0 && time.Now().Before(end); {
		<-tick.C
		if s.metrics.open.Load() == 0 {
			break
		}
	}
	for _, x := range s.all() {
		x.Close()
	}
	s.tasks.Wait()
}

// all are the sessions that have not ended.
func (s *servers) all() []session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(slices.Collect(maps.Values(s.sessions)), maps.Keys(s.leaving))
}
