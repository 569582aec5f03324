package etcd

import (
	"bytes"
	"slices"
	"sync"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// inFlight holds the writes of running commits by key. When etcd delivers their events, the store reuses their values
// and derived data instead of decoding the values again.
type inFlight struct {
	mu     sync.Mutex
	writes map[string][]inFlightWrite
}

type inFlightWrite struct {
	*storage.Write
	encoded []byte // the value in etcd
}

// add adds the writes of a commit with their encoded values.
func (f *inFlight) add(writes []storage.Write, encoded [][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes == nil {
		f.writes = map[string][]inFlightWrite{}
	}
	for i := range writes {
		key := writes[i].Key
		f.writes[key] = append(f.writes[key], inFlightWrite{&writes[i], encoded[i]})
	}
}

func (f *inFlight) remove(writes []storage.Write) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range writes {
		key := writes[i].Key
		left := slices.DeleteFunc(f.writes[key], func(w inFlightWrite) bool { return w.Write == &writes[i] })
		if f.writes[key] = left; len(left) == 0 {
			delete(f.writes, key)
		}
	}
}

// attach sets the value and the derived data of r, whose value in etcd is encoded, if r results from a write in
// flight.
func (f *inFlight) attach(r *storage.Record, encoded []byte) bool {
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
