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
	// largestCompaction is the approximate size of one compaction by the engine. A compaction needs this much
	// disk space before it can delete the files that it replaces.
	largestCompaction = 128 << 20
	// maxDefaultReserve limits the default reserve. On a large disk, a twentieth would be far more than any
	// deletion needs.
	maxDefaultReserve = 1 << 30
	// smallGrowth is the number of bytes by which an update may enlarge an object while disk space is low. It
	// suffices for a status, a deletion timestamp, or the removal of a finalizer.
	smallGrowth = 4 << 10
	// recheckAfter is the number of bytes written before the free space is read again.
	recheckAfter = 1 << 20
)

// space tracks the free space of the disk and admits writes. The reserve is for deletions. While at least half of
// it is free, small updates are admitted as well.
type space struct {
	usage        func() (free, size uint64, err error)
	fs           vfs.FS
	dir          string
	requested    int64 // Options.Reserve
	workingSpace int64 // bytes that the engine needs in addition to its tables
	health       *Health
	logger       *slog.Logger

	mu         sync.Mutex
	known      bool  // whether free and size are known
	free       int64 // when it was last read
	size       int64
	written    int64 // bytes written since then
	stored     int64 // size of the engine's tables
	scarce     bool
	unreadable bool // the last attempt to read the usage has failed, which has been logged
}

func newSpace(o Options, fs vfs.FS, dir string) *space {
	s := &space{
		usage: o.DiskUsage, fs: fs, dir: dir, requested: o.Reserve,
		workingSpace: 2 * int64(o.memTable), health: o.Health, logger: o.Logger,
	}
	if s.usage == nil {
		s.usage = func() (free, size uint64, err error) {
			u, err := fs.GetDiskUsage(dir)
			return u.AvailBytes, u.TotalBytes, err
		}
	}
	return s
}

// reserve returns the requested number of bytes to keep free, or the default. The default is a twentieth of the
// disk up to 1 GiB. It is at least the space that the engine needs for compactions, and at most half of the disk.
func (s *space) reserve() int64 {
	if s.requested > 0 {
		return s.requested
	}
	return min(max(min(s.size/20, maxDefaultReserve), min(s.stored, largestCompaction)+s.workingSpace), s.size/2)
}

// read reads the free space. The caller holds mu.
func (s *space) read() {
	s.measure()
	free, size, err := s.usage()
	s.known = err == nil
	if err != nil {
		if !s.unreadable && !errors.Is(err, vfs.ErrUnsupported) {
			s.logger.Warn("cannot read the free space of the disk", "err", err)
		}
		s.unreadable = true
		return
	}
	s.free, s.size, s.written = int64(min(free, 1<<62)), int64(min(size, 1<<62)), 0
	s.updateScarce()
}

// updateScarce updates scarce, and reports a change. The caller holds mu.
func (s *space) updateScarce() {
	reserve := s.reserve()
	s.health.setFreeSpace(s.free, reserve)
	switch {
	case !s.scarce && s.free < reserve:
		s.setScarce(reserve)
	case s.scarce && s.free >= reserve+reserve/16: // hysteresis, so that the state does not flap
		s.scarce = false
		s.logger.Warn("the disk has enough free space again", "free", s.free, "reserve", reserve)
		s.health.setLowSpace(nil)
	}
}

// setScarce sets scarce and reports it. The caller holds mu.
func (s *space) setScarce(reserve int64) {
	s.scarce = true
	s.logger.Warn("the disk is nearly full: deletions and small updates continue, other writes are refused until "+
		"space is freed", "free", s.free, "reserve", reserve)
	s.health.setLowSpace(fmt.Errorf("the disk is nearly full: %d MiB are free, and %d MiB are reserved",
		s.free>>20, reserve>>20))
}

// check reads the free space and reports whether it is scarce.
func (s *space) check() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read()
	return s.scarce
}

// low reports whether space was scarce at the last check.
func (s *space) low() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scarce
}

// hasFree reports whether n bytes are free, or the free space is unknown.
func (s *space) hasFree(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read()
	return !s.known || s.free >= n
}

// measure sums up the sizes of the engine's tables. The caller holds mu.
func (s *space) measure() {
	dir := s.fs.PathJoin(s.dir, "engine")
	names, err := s.fs.List(dir)
	if err != nil {
		return // keep the last value
	}
	var sum int64
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		if info, err := s.fs.Stat(s.fs.PathJoin(dir, name)); err == nil { // otherwise the file has just been deleted
			sum += info.Size()
		}
	}
	s.stored = sum
}

// admit counts events as written, or returns an ErrNoSpace.
func (s *space) admit(events []*storage.Event) error {
	need := demandOf(events)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scarce || s.written+need.bytes > min(recheckAfter, s.reserve()/8) {
		s.read()
	}
	reserve := s.reserve()
	left := s.free - s.written - need.bytes
	if s.known && left < reserve && !s.scarce {
		s.setScarce(reserve)
	}
	if s.known && s.scarce && !need.deletesOnly && (!need.small || left < reserve/2) {
		return fmt.Errorf("%w: %d bytes are free", storage.ErrNoSpace, s.free)
	}
	s.written += need.bytes
	return nil
}

// demand describes the disk space that events need.
type demand struct {
	bytes       int64
	small       bool // no object is new or grows by more than smallGrowth
	deletesOnly bool // all events are deletions
}

func demandOf(events []*storage.Event) demand {
	d := demand{small: true, deletesOnly: true}
	for _, e := range events {
		d.bytes += int64(len(e.Key))
		if e.Record == nil {
			continue
		}
		d.deletesOnly = false
		d.bytes += int64(len(e.Record.Value))
		if e.Previous == nil || len(e.Record.Value) > len(e.Previous.Value)+smallGrowth {
			d.small = false
		}
	}
	return d
}
