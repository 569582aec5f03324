package engine

import (
	"container/list"
	"sync"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// maxViewBytes bounds what views keeps.
const maxViewBytes = 32 << 20

// views keeps objects as they look at versions they were not stored at, the least
// recently used ones going first. The zero value is ready.
type views struct {
	mu    sync.Mutex
	byKey map[viewKey]*list.Element
	order list.List // of *viewEntry, the most recently used first
	bytes int
}

// viewKey names a view: a revision is that of one object.
type viewKey struct {
	revision int64
	version  *resource.Version
}

type viewEntry struct {
	key    viewKey
	packed object.Packed
}

func (v *views) get(r reader, rec *storage.Record) (object.Packed, error) {
	key := viewKey{rec.Modified, r.version}
	if p := v.find(key); p != nil {
		return p, nil
	}
	p, err := r.view(object.Packed(rec.Value))
	if err != nil {
		return nil, err
	}
	v.put(key, p)
	return p, nil
}

func (v *views) find(key viewKey) object.Packed {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.byKey[key]
	if e == nil {
		return nil
	}
	v.order.MoveToFront(e)
	return e.Value.(*viewEntry).packed
}

func (v *views) put(key viewKey, p object.Packed) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byKey[key] != nil {
		return
	}
	if v.byKey == nil {
		v.byKey = map[viewKey]*list.Element{}
	}
	v.byKey[key] = v.order.PushFront(&viewEntry{key, p})
	v.bytes += len(p)
	for v.bytes > maxViewBytes && v.order.Len() > 1 {
		last := v.order.Remove(v.order.Back()).(*viewEntry)
		delete(v.byKey, last.key)
		v.bytes -= len(last.packed)
	}
}
