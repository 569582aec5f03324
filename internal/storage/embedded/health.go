package embedded

import (
	"errors"
	"sync"
)

// Health reports the state of the log in a directory. The zero value is healthy. Its errors contain no paths.
type Health struct {
	mu            sync.Mutex
	failed        error // the engine cannot be used
	lowSpace      error // the disk is nearly full
	free, reserve int64
	failures      int64
}

// errFailedWrite is the public error for a failed engine. The logger gets the cause.
var errFailedWrite = errors.New("a write to the disk has failed, and the store is not reopened yet")

// Err returns the reason why some or all writes are refused, or nil.
func (h *Health) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed != nil {
		return h.failed
	}
	return h.lowSpace
}

// FreeSpace returns the number of free bytes of the disk, and the number of reserved bytes.
func (h *Health) FreeSpace() (free, reserve int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.free, h.reserve
}

// Failures returns how many times a failed write has made the engine unusable.
func (h *Health) Failures() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures
}

func (h *Health) setFailed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed = err; err != nil {
		h.failures++
	}
}

func (h *Health) setLowSpace(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lowSpace = err
}

func (h *Health) setFreeSpace(free, reserve int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.free, h.reserve = free, reserve
}
