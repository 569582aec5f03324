// Package inflight holds the writes of running commits.
package inflight

import (
	"bytes"
	"slices"
	"sync"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Writes are the writes of running commits by key. When etcd delivers their events, the store reuses their values and
// derived data instead of decoding the values again. The zero value is ready to use.
type Writes struct {
	mu     sync.Mutex
	writes map[string][]write
}

type write struct {
	*storage.Write
	encoded []byte // the value in etcd
}

// Add adds the writes of a commit with their encoded values.
func (f *Writes) Add(writes []storage.Write, encoded [][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes == nil {
		f.writes = map[string][]write{}
	}
	for i := range writes {
		key := writes[i].Key
		f.writes[key] = append(f.writes[key], write{&writes[i], encoded[i]})
	}
}

// Remove removes the writes of a commit.
func (f *Writes) Remove(writes []storage.Write) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range writes {
		key := writes[i].Key
		left := slices.DeleteFunc(f.writes[key], func(w write) bool { return w.Write == &writes[i] })
		if f.writes[key] = left; len(left) == 0 {
			delete(f.writes, key)
		}
	}
}

// Attach sets the value and the derived data of r, whose value in etcd is encoded, if r results from a write in
// flight.
func (f *Writes) Attach(r *storage.Record, encoded []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.writes[r.Key] {
		if w.Value == nil || !bytes.Equal(w.encoded, encoded) {
			continue
		}
		r.Value = w.Value
		if w.Derived != nil {
			r.Derived.Store(w.Derived)
		}
		return true
	}
	return false
}
