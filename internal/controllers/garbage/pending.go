package garbage

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// pendingKeys holds keys that cannot be processed until a kind is served. Some kinds are never served,
// so keys that are no longer needed are pruned from time to time.
type pendingKeys[K comparable] struct {
	isNeeded func(K) bool // reports whether a key is still needed

	mu             sync.Mutex
	byKind         map[schema.GroupKind]map[K]bool
	addsUntilPrune int
}

// minAddsBetweenPrunes is the minimum number of calls of add between two calls of prune.
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

// prune removes the keys that are no longer needed, and returns the number of remaining keys.
func (p *pendingKeys[K]) prune() (left int) {
	for kind, keys := range p.byKind {
		maps.DeleteFunc(keys, func(key K, _ bool) bool { return !p.isNeeded(key) })
		if left += len(keys); len(keys) == 0 {
			delete(p.byKind, kind)
		}
	}
	return left
}

// take removes and returns the keys that wait for a kind.
func (p *pendingKeys[K]) take(kind schema.GroupKind) map[K]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := p.byKind[kind]
	delete(p.byKind, kind)
	return keys
}
