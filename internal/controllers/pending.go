package controllers

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// nameSet is a set of names that something is waited for; its zero value is empty.
type nameSet struct{ names sync.Map }

func (w *nameSet) add(name string)      { w.names.Store(name, true) }
func (w *nameSet) remove(name string)   { w.names.Delete(name) }
func (w *nameSet) has(name string) bool { _, ok := w.names.Load(name); return ok }

func (w *nameSet) each(do func(name string)) {
	w.names.Range(func(name, _ any) bool {
		do(name.(string))
		return true
	})
}

// pendingKeys holds keys until a kind is served. A kind may never be: from time to time keys that mean nothing any longer are let go.
type pendingKeys[K comparable] struct {
	isNeeded func(K) bool // says of a key that it still means something

	mu             sync.Mutex
	byKind         map[schema.GroupKind]map[K]bool
	addsUntilPrune int // until the next look at all keys
}

// minAddsBetweenPrunes are not worth a look.
const minAddsBetweenPrunes = 1000

func (p *pendingKeys[K]) add(kind schema.GroupKind, key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byKind == nil {
		p.byKind = map[schema.GroupKind]map[K]bool{}
	}
	if p.byKind[kind] == nil {
		p.byKind[kind] = map[K]bool{}
	}
	p.byKind[kind][key] = true
	if p.addsUntilPrune--; p.addsUntilPrune <= 0 {
		p.addsUntilPrune = minAddsBetweenPrunes + p.prune()
	}
}

// prune lets go of what does not matter, and returns how many are left.
func (p *pendingKeys[K]) prune() (left int) {
	for kind, keys := range p.byKind {
		maps.DeleteFunc(keys, func(key K, _ bool) bool { return !p.isNeeded(key) })
		if left += len(keys); len(keys) == 0 {
			delete(p.byKind, kind)
		}
	}
	return left
}

// take empties the place of a kind.
func (p *pendingKeys[K]) take(kind schema.GroupKind) map[K]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := p.byKind[kind]
	delete(p.byKind, kind)
	return keys
}
