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

// drain asks all servers for no new connections, and ends the sessions: each with its last connection, or all when the limit is reached.
// It is called after run has returned.
func (s *servers) drain() {
	for _, x := range s.all() {
		x.Drain()
		s.tasks.Go(func() { _ = x.Finish() })
	}
	ended := make(chan struct{})
	go func() {
		s.tasks.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(drainLimit):
		for _, x := range s.all() {
			x.Close()
		}
		<-ended
	}
}

// all are the sessions that have not ended.
func (s *servers) all() []session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(slices.Collect(maps.Values(s.sessions)), maps.Keys(s.leaving))
}
