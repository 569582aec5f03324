package embedded

import (
	"errors"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// janitor deletes what has expired and compacts history, until Close.
func (s *Store) janitor() {
	tick := s.options.compactAfter / 10
	s.note(tick)
	for {
		select {
		case <-s.stop:
			return
		case <-s.options.after(s.expiry.wait(s.options.now(), tick)):
		case <-s.expiry.ready:
		case <-s.options.tight:
			s.note(0)
			s.retire(min(shortHistory, s.options.compactAfter))
			continue
		}
		s.sweep()
		s.note(tick)
		s.retire(s.options.compactAfter)
		s.TrimHistory()
	}
}

// note remembers when the head was where it is.
func (s *Store) note(every time.Duration) {
	s.retention.note(s.Head().Revision(), s.options.now(), every)
}

// shortHistory is how much is kept when room is scarce: enough for a client to go from one
// page of a list to the next, and from a list to its watch.
const shortHistory = 10 * time.Second

// retire compacts what is older than age or too much.
func (s *Store) retire(age time.Duration) {
	target := s.retention.target(s.options.now().Add(-age), s.options.historyBytes)
	if target == 0 || target < s.Oldest() { // one that failed is tried again
		return
	}
	if err := s.compact(target); err != nil && !errors.Is(err, storage.ErrClosed) && !errors.Is(err, storage.ErrUnavailable) {
		s.options.logger.Error("history could not be compacted", "revision", target, "err", err)
	}
}

// compact forgets history before revision.
func (s *Store) compact(revision int64) error {
	return s.past.use(func() error {
		if revision < s.Oldest() {
			return nil
		}
		if err := s.DropHistory(revision); err != nil { // first, so that nobody starts on what is about to go
			return err
		}
		if err := s.log.Compact(revision); err != nil {
			return err
		}
		s.retention.compacted(revision)
		s.TrimHistory()
		return nil
	})
}

// sweepAtOnce is how many expired keys are deleted in one round.
const sweepAtOnce = 256

// sweepAgain is when that is tried again if the log cannot write.
const sweepAgain = 5 * time.Second

// sweep deletes the keys that have expired, each by a commit of its own, so that
// one that was just renewed does not hold up the others.
func (s *Store) sweep() {
	for {
		due := s.expiry.due(s.options.now(), sweepAtOnce)
		if len(due) == 0 {
			return
		}
		requests := make([]*request, 0, len(due))
		for _, d := range due {
			if !s.present(d) {
				continue
			}
			requests = append(requests, &request{
				writes: []storage.Write{{Key: d.key, Expected: d.revision}},
				done:   make(chan struct{}),
			})
		}
		if !s.queue.add(requests...) {
			return
		}
		failed := false
		for _, r := range requests {
			<-r.done
			conflict := (*storage.ConflictError)(nil)
			failed = failed || r.err != nil && !errors.As(r.err, &conflict)
		}
		if failed { // the log cannot write, which it has logged
			s.postpone(due)
			return
		}
	}
}

// present says whether what expires is still there.
func (s *Store) present(d deadline) bool {
	r := s.Head().Get(d.key)
	return r != nil && r.Modified == d.revision
}

// postpone has what is still there of due deleted later.
func (s *Store) postpone(due []deadline) {
	later := s.options.now().Add(sweepAgain)
	for _, d := range due {
		if s.present(d) {
			s.expiry.push(deadline{later, d.key, d.revision})
		}
	}
}
