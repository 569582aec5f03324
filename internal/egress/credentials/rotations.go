package credentials

import (
	"bytes"
	"crypto/tls"
	"slices"
	"sync"
	"time"
)

// rotationCheck is the interval at which the files of a certificate in use are read again.
const rotationCheck = time.Minute

// rotations counts the changes of a certificate.
type rotations struct {
	certificate func() (*tls.Certificate, error)

	mu      sync.Mutex
	checked time.Time
	last    [][]byte
	n       uint64
}

// count returns the number of changes up to the last check. An unreadable certificate does not count as a change.
func (r *rotations) count() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.checked) < rotationCheck {
		return r.n
	}
	r.checked = time.Now()
	now, err := r.certificate()
	if err != nil {
		return r.n
	}
	if r.last != nil && !slices.EqualFunc(r.last, now.Certificate, bytes.Equal) {
		r.n++
	}
	r.last = now.Certificate
	return r.n
}
