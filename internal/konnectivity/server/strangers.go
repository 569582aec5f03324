package server

import (
	"container/list"
	"errors"
	"math"
	"sync"
	"syscall"
)

// strangersShare of the files that the process may have open are connections to the port for agents by which nobody has been let in:
// the rest is for agents, API servers and those who ask whether the server is alive.
const strangersShare = 4

var errTooManyStrangers = errors.New("too many others have come that are no agents yet either")

// strangers are connections to the port for agents by which no agent has been let in yet. Those who are to be take a moment, so that for
// one too many it is the oldest that has to go.
type strangers struct {
	most int

	mu   sync.Mutex
	line list.List // of how to close them, the oldest first
}

func newStrangers() *strangers {
	files := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) // or what systems mostly have
	return &strangers{most: int(min(files.Cur/strangersShare, math.MaxInt32))}
}

// enter keeps a connection until leave is called, which may be more than once: it is an agent's, or has ended.
func (s *strangers) enter(end func(error)) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line.Len() >= s.most {
		if oldest := s.line.Front(); oldest != nil {
			go s.line.Remove(oldest).(func(error))(errTooManyStrangers)
		}
	}
	mine := s.line.PushBack(end)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.line.Remove(mine)
	}
}
