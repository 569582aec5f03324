package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	// largestCompaction is about what the engine rewrites at once: it needs as much room
	// until it can delete what it has rewritten.
	largestCompaction = 128 << 20
	// enough is the largest reserve that is made without being asked for: on a large disk a twentieth would keep
	// far more from those who write than any deletion needs.
	enough = 1 << 30
	// leanGrowth is how much larger an update may make its object when room is scarce: a
	// status, a mark that the object is to be deleted, a finalizer that goes.
	leanGrowth = 4 << 10
	// lookAfter is how many bytes are written before the room is looked at again.
	lookAfter = 1 << 20
)

// space knows the room on the disk, and what may be written in it. Room that is kept in
// reserve is for what makes room: all deletions, and in its upper half updates that
// need little.
type space struct {
	usage   func() (free, size uint64, err error)
	fs      vfs.FS
	dir     string
	asked   int64 // Options.Reserve
	working int64 // what the engine needs beside its files
	health  *Health
	logger  *slog.Logger

	mu      sync.Mutex
	known   bool  // how much is free
	free    int64 // when it was looked at
	size    int64
	written int64 // since then
	stored  int64 // in the engine's tables
	scarce  bool
	broken  bool // the usage cannot be read, which has been logged
}

func newSpace(o Options, fs vfs.FS, dir string) *space {
	s := &space{usage: o.DiskUsage, fs: fs, dir: dir, asked: o.Reserve, working: 2 * int64(o.memTable), health: o.Health, logger: o.Logger}
	if s.usage == nil {
		s.usage = func() (free, size uint64, err error) {
			u, err := fs.GetDiskUsage(dir)
			return u.AvailBytes, u.TotalBytes, err
		}
	}
	return s
}

// reserve is how much is kept free: what was asked for, or else a twentieth of the disk up to 1 GiB, and
// at least what the engine needs for making its files smaller; never more than half of the disk.
func (s *space) reserve() int64 {
	if s.asked > 0 {
		return s.asked
	}
	return min(max(min(s.size/20, enough), min(s.stored, largestCompaction)+s.working), s.size/2)
}

// read sees how much is free. The caller holds mu.
func (s *space) read() {
	s.measure()
	free, size, err := s.usage()
	s.known = err == nil
	if err != nil {
		if !s.broken && !errors.Is(err, vfs.ErrUnsupported) {
			s.logger.Warn("how much room there is on the disk cannot be told", "err", err)
		}
		s.broken = true
		return
	}
	s.free, s.size, s.written = int64(min(free, 1<<62)), int64(min(size, 1<<62)), 0
	s.judge()
}

// judge decides whether room is scarce, and tells of a change. The caller holds mu.
func (s *space) judge() {
	reserve := s.reserve()
	s.health.room(s.free, reserve)
	switch {
	case !s.scarce && s.free < reserve:
		s.short(reserve)
	case s.scarce && s.free >= reserve+reserve/16: // a little more, so that it does not come and go
		s.scarce = false
		s.logger.Warn("there is room on the disk again", "free", s.free, "reserve", reserve)
		s.health.lack(nil)
	}
}

// short notes that room has run short. The caller holds mu.
func (s *space) short(reserve int64) {
	s.scarce = true
	s.logger.Warn("the disk is nearly full: deletions and small updates go on, other writes are refused until there is room", "free", s.free, "reserve", reserve)
	s.health.lack(fmt.Errorf("the disk is nearly full: %d MiB are free, and %d MiB are kept in reserve", s.free>>20, reserve>>20))
}

// look reads the room and says whether it is scarce.
func (s *space) look() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read()
	return s.scarce
}

// low says whether room was scarce at the last look.
func (s *space) low() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scarce
}

// enough says whether n bytes are free.
func (s *space) enough(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read()
	return !s.known || s.free >= n
}

// measure adds up the engine's tables, which is what it may rewrite. The caller holds mu.
func (s *space) measure() {
	dir := s.fs.PathJoin(s.dir, "engine")
	names, err := s.fs.List(dir)
	if err != nil {
		return // it is no more than a measure
	}
	var sum int64
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		if info, err := s.fs.Stat(s.fs.PathJoin(dir, name)); err == nil { // else it has just gone
			sum += info.Size()
		}
	}
	s.stored = sum
}

// admit counts events as written, or refuses them.
func (s *space) admit(events []*storage.Event) error {
	need := demandOf(events)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scarce || s.written+need.bytes > min(lookAfter, s.reserve()/8) {
		s.read()
	}
	reserve := s.reserve()
	left := s.free - s.written - need.bytes
	if s.known && left < reserve && !s.scarce {
		s.short(reserve)
	}
	if s.known && s.scarce && !need.frees && (!need.lean || left < reserve/2) {
		return fmt.Errorf("%w: %d bytes are free", storage.ErrNoSpace, s.free)
	}
	s.written += need.bytes
	return nil
}

// demand is what events ask of the disk.
type demand struct {
	bytes int64
	lean  bool // nothing new, and nothing becomes much larger
	frees bool // nothing but deletions
}

func demandOf(events []*storage.Event) demand {
	d := demand{lean: true, frees: true}
	for _, e := range events {
		d.bytes += int64(len(e.Key))
		if e.Record == nil {
			continue
		}
		d.frees = false
		d.bytes += int64(len(e.Record.Value))
		if e.Previous == nil || len(e.Record.Value) > len(e.Previous.Value)+leanGrowth {
			d.lean = false
		}
	}
	return d
}
