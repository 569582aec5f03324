package server

import (
	"container/list"
	"errors"
	"math"
	"sync"
	"syscall"
)

// unauthenticatedShare divides the process's limit of open files: the result is the maximum number of
// unauthenticated connections to the agent port. The rest is reserved for agents, API servers and health
// checks.
const unauthenticatedShare = 4

var errTooManyUnauthenticated = errors.New("too many unauthenticated connections")

// unauthenticatedConns tracks the connections to the agent port that have not authenticated an agent.
// Authentication takes only a moment. Above the limit, the oldest connection is therefore closed.
type unauthenticatedConns struct {
	limit int

	mu    sync.Mutex
	conns list.List // functions that close the connections, oldest first
}

func newUnauthenticatedConns() *unauthenticatedConns {
	files := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) // on failure, keep the common limit
	return &unauthenticatedConns{limit: int(min(files.Cur/unauthenticatedShare, math.MaxInt32))}
}

// add adds a connection until remove is called: when an agent has authenticated, or the connection has ended.
// remove may be called several times.
func (s *unauthenticatedConns) add(closeConn func(error)) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns.Len() >= s.limit {
		if oldest := s.conns.Front(); oldest != nil {
			go s.conns.Remove(oldest).(func(error))(errTooManyUnauthenticated)
		}
	}
	element := s.conns.PushBack(closeConn)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conns.Remove(element)
	}
}
