package server

import (
	"container/list"
	"errors"
	"math"
	"sync"
	"syscall"
)

// unauthenticatedShare is the divisor of the process's limit of open files. The quotient is the maximum number of
// unauthenticated connections to the agent port. The other files are reserved for agents, API servers and health
// checks.
const unauthenticatedShare = 4

var errTooManyUnauthenticated = errors.New("too many unauthenticated connections")

// unauthenticatedConns tracks the connections to the agent port that have not authenticated an agent. If there are
// too many, it closes the oldest one, because authentication takes only a moment.
type unauthenticatedConns struct {
	limit int

	mu    sync.Mutex
	conns list.List // functions that close the connections, oldest first
}

func newUnauthenticatedConns() *unauthenticatedConns {
	files := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) // the limit stays 1024 if this fails
	return &unauthenticatedConns{limit: int(min(files.Cur/unauthenticatedShare, math.MaxInt32))}
}

// add adds a connection. The caller must call remove when an agent has authenticated or the connection has ended.
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
