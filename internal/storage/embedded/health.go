package embedded

import (
	"errors"
	"sync"
)

// Health is how the log in a directory fares, for those who watch it. The zero value is
// in good health. What it says holds no paths.
type Health struct {
	mu            sync.Mutex
	failed        error // the engine cannot be used
	lacking       error // room is scarce
	free, reserve int64
	failures      int64
}

// errFailedWrite is what is said of a failed engine; the log has the cause.
var errFailedWrite = errors.New("the disk has failed a write, and the store could not be opened again yet")

// Err is why not everything can be written at the moment, or nil.
func (h *Health) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed != nil {
		return h.failed
	}
	return h.lacking
}

// FreeSpace is how many bytes of the disk are free, and how many are kept free.
func (h *Health) FreeSpace() (free, reserve int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.free, h.reserve
}

// Failures is how often the disk has failed a write.
func (h *Health) Failures() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures
}

func (h *Health) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed = err; err != nil {
		h.failures++
	}
}

func (h *Health) lack(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lacking = err
}

func (h *Health) room(free, reserve int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.free, h.reserve = free, reserve
}
