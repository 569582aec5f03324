package logstore

import (
	"errors"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// compactLoop deletes expired keys and compacts the history, until Close.
func (s *Store) compactLoop() {
	tick := s.options.CompactAfter / 10
	s.sample(tick)
	for {
		select {
		case <-s.stop:
			return
		case <-s.options.After(s.expiry.wait(s.options.Now(), tick)):
		case <-s.expiry.ready:
		case <-s.options.LowSpace:
			s.sample(0)
			s.compactHistory(min(shortHistory, s.options.CompactAfter))
			continue
		}
		s.deleteExpired()
		s.sample(tick)
		s.compactHistory(s.options.CompactAfter)
		s.TrimHistory()
	}
}

// sample records the revision of the head and the time. It does nothing if the last sample is younger than the
// given interval.
func (s *Store) sample(every time.Duration) {
	s.retention.note(s.Head().Revision(), s.options.Now(), every)
}

// shortHistory is the age of the history that is retained while disk space is low. It allows a client to continue a
// paginated list, and to start a watch from a list.
const shortHistory = 10 * time.Second

// compactHistory compacts history that is older than age or exceeds the size limit.
func (s *Store) compactHistory(age time.Duration) {
	target := s.retention.target(s.options.Now().Add(-age), s.options.HistoryBytes)
	if target == 0 || target < s.Oldest() { // they are equal if an earlier compaction has failed, so try again
		return
	}
	err := s.compact(target)
	if err != nil && !errors.Is(err, storage.ErrClosed) && !errors.Is(err, storage.ErrUnavailable) {
		s.options.Logger.Error("cannot compact the history", "revision", target, "err", err)
	}
}

// compact drops the history before revision.
func (s *Store) compact(revision int64) error {
	return s.history.do(func() error {
		if revision < s.Oldest() {
			return nil
		}
		// First make the history unreadable, so that no reader starts on revisions that are about to be deleted.
		if err := s.DropHistory(revision); err != nil {
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

// expireBatch is the maximum number of expired keys that are deleted at once.
const expireBatch = 256

// expireRetry is the delay before deletions are retried if the log cannot write.
const expireRetry = 5 * time.Second

// deleteExpired deletes the expired keys. Each deletion is a separate commit, so that a conflict with a renewed key
// does not affect the others.
func (s *Store) deleteExpired() {
	for {
		due := s.expiry.due(s.options.Now(), expireBatch)
		if len(due) == 0 {
			return
		}
		requests := make([]*request, 0, len(due))
		for _, d := range due {
			if !s.isCurrent(d) {
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
		if failed { // the log cannot write and has already logged the error
			s.postpone(due)
			return
		}
	}
}

// isCurrent reports whether the key of d has not changed since d was added.
func (s *Store) isCurrent(d deadline) bool {
	r := s.Head().Get(d.key)
	return r != nil && r.Modified == d.revision
}

// postpone adds the deadlines in due to the expiry queue again, at a later time.
func (s *Store) postpone(due []deadline) {
	later := s.options.Now().Add(expireRetry)
	for _, d := range due {
		if s.isCurrent(d) {
			s.expiry.push(deadline{later, d.key, d.revision})
		}
	}
}
