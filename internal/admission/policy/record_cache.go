package policy

import (
	"runtime"
	"sync"
	"weak"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// recordCache caches values decoded from records. A value is evicted when its record is garbage-collected. That
// happens after the object has changed or been deleted, when no snapshot contains the record any more. The zero value
// is ready for use. The cached values are shared and read-only.
type recordCache[T any] struct {
	mu      sync.RWMutex
	entries map[cacheKey]T
}

// cacheKey identifies a record and an apiVersion.
type cacheKey struct {
	record weak.Pointer[storage.Record]
	at     string
}

func (d *recordCache[T]) get(rec *storage.Record, at string, decode func() (T, error)) (T, error) {
	key := cacheKey{weak.Make(rec), at}
	d.mu.RLock()
	value, ok := d.entries[key]
	d.mu.RUnlock()
	if ok {
		return value, nil
	}
	value, err := decode()
	if err != nil {
		return value, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entries == nil {
		d.entries = map[cacheKey]T{}
	}
	if _, ok := d.entries[key]; !ok {
		runtime.AddCleanup(rec, d.evict, key)
	}
	d.entries[key] = value
	return value, nil
}

func (d *recordCache[T]) evict(key cacheKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.entries, key)
}
