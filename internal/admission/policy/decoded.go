package policy

import (
	"runtime"
	"sync"
	"weak"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// decoded keeps what has been made of records, each as long as somebody has the record: until the object has changed or gone, and
// nobody can read that state of it any longer. The zero value is ready. What it returns is shared, and read only.
type decoded[T any] struct {
	mu    sync.RWMutex
	known map[state]T
}

// state is that of an object, as it is served at an apiVersion.
type state struct {
	record weak.Pointer[storage.Record]
	at     string
}

func (d *decoded[T]) get(rec *storage.Record, at string, decode func() (T, error)) (T, error) {
	key := state{weak.Make(rec), at}
	d.mu.RLock()
	known, ok := d.known[key]
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
	if d.known == nil {
		d.known = map[state]T{}
	}
	if _, ok := d.known[key]; !ok {
		runtime.AddCleanup(rec, d.forget, key)
	}
	d.known[key] = made
	return made, nil
}

func (d *decoded[T]) forget(key state) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, key)
}
