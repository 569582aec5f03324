package agent

import "time"

const (
	drainLimit = 25 * time.Second       // for connections to end; a Pod has 30 seconds by default
	drainPoll  = 500 * time.Millisecond // how often they are counted; a dial that was on its way then has come
)

// drain asks all servers for no new connections, waits until none is open or the limit is reached, and ends the sessions.
// It is called after run has returned.
func (s *servers) drain() {
	s.each(session.Drain)
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for end := time.Now().Add(drainLimit); s.ready() && time.Now().Before(end); {
		<-tick.C
		if s.metrics.open.Load() == 0 {
			break
		}
	}
	s.each(session.Close)
	s.tasks.Wait()
}

func (s *servers) each(do func(session)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		do(x)
	}
}
