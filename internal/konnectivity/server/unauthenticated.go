package server

import (
	"container/list"
	"errors"
	"math"
	"sync"
	"syscall"
)

// unauthenticatedShare of the files that the process may have open are connections to the port for agents by which nobody has been let in:
// the rest is for agents, API servers and those who ask whether the server is alive.
const unauthenticatedShare = 4

var errTooManyUnauthenticated = errors.New("too many others have come that are no agents yet either")

// unauthenticatedConns are connections to the port for agents by which no agent has been let in yet. Those who are to be take a moment, so that for
// one too many it is the oldest that has to go.
type unauthenticatedConns struct {
	limit int

	mu    sync.Mutex
	conns list.List // of how to close them, the oldest first
}

func newUnauthenticatedConns() *unauthenticatedConns {
	files := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) // or what systems mostly have
	return &unauthenticatedConns{limit: int(min(files.Cur/unauthenticatedShare, math.MaxInt32))}
}

// add keeps a connection until leave is called, which may be more than once: it is an agent's, or has ended.
func (s *unauthenticatedConns) add(end func(error)) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns.Len() >= s.limit {
		if oldest := s.conns.Front(); oldest != nil {
			go s.conns.Remove(oldest).(func(error))(errTooManyUnauthenticated)
		}
	}
	mine := s.conns.PushBack(end)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conns.Remove(mine)
	}
}
