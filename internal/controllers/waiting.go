package controllers

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// waiting is a set of names that something is waited for; its zero value is empty.
type waiting struct{ names sync.Map }

func (w *waiting) add(name string)      { w.names.Store(name, true) }
func (w *waiting) remove(name string)   { w.names.Delete(name) }
func (w *waiting) has(name string) bool { _, ok := w.names.Load(name); return ok }

func (w *waiting) each(do func(name string)) {
	w.names.Range(func(name, _ any) bool {
		do(name.(string))
		return true
	})
}

// parking holds keys until a kind is served. A kind may never be: from time to time keys that mean nothing any longer are let go.
type parking[K comparable] struct {
	matters func(K) bool // says of a key that it still means something

	mu     sync.Mutex
	parked map[schema.GroupKind]map[K]bool
	adds   int // until the next look at all keys
}

// fewParked are not worth a look.
const fewParked = 1000

func (p *parking[K]) add(kind schema.GroupKind, key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parked == nil {
		p.parked = map[schema.GroupKind]map[K]bool{}
	}
	if p.parked[kind] == nil {
		p.parked[kind] = map[K]bool{}
	}
	p.parked[kind][key] = true
	if p.adds--; p.adds <= 0 {
		p.adds = fewParked + p.sweep()
	}
}

// sweep lets go of what does not matter, and returns how many are left.
func (p *parking[K]) sweep() (left int) {
	for kind, keys := range p.parked {
		maps.DeleteFunc(keys, func(key K, _ bool) bool { return !p.matters(key) })
		if left += len(keys); len(keys) == 0 {
			delete(p.parked, kind)
		}
	}
	return left
}

// take empties the place of a kind.
func (p *parking[K]) take(kind schema.GroupKind) map[K]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := p.parked[kind]
	delete(p.parked, kind)
	return keys
}
