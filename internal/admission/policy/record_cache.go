package policy

import (
	"runtime"
	"sync"
	"weak"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// recordCache keeps what has been made of records, each as long as somebody has the record: until the object has changed or gone, and
// nobody can read that state of it any longer. The zero value is ready. What it returns is shared, and read only.
type recordCache[T any] struct {
	mu    sync.RWMutex
	entries map[cacheKey]T
}

// cacheKey is that of an object, as it is served at an apiVersion.
type cacheKey struct {
	record weak.Pointer[storage.Record]
	at     string
}

func (d *recordCache[T]) get(rec *storage.Record, at string, decode func() (T, error)) (T, error) {
	key := cacheKey{weak.Make(rec), at}
	d.mu.RLock()
	known, ok := d.entries[key]
	d.mu.RUnlock()
	if ok {
		return known, nil
	}
	made, err := decode()
	if err != nil {
		return made, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entries == nil {
		d.entries = map[cacheKey]T{}
	}
	if _, ok := d.entries[key]; !ok {
		runtime.AddCleanup(rec, d.evict, key)
	}
	d.entries[key] = made
	return made, nil
}

func (d *recordCache[T]) evict(key cacheKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.entries, key)
}
