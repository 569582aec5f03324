package tree

import "fmt"

// Builder makes a Tree from keys in ascending order, in linear time.
type Builder[V any] struct {
	leaves []*node[V]
	last   string
}

// fill leaves room in each node, so that the first writes after a load need not
// split every leaf they touch.
const fill = maxEntries * 3 / 4

// Add appends a key, which must be greater than the one before.
func (b *Builder[V]) Add(key string, version int64, value V) error {
	n := len(b.leaves)
	if n > 0 && key <= b.last {
		return fmt.Errorf("tree: key %q comes after %q", key, b.last)
	}
	b.last = key
	if n == 0 || len(b.leaves[n-1].entries) == fill {
		b.leaves = append(b.leaves, &node[V]{entries: make([]entry[V], 0, fill)})
		n++
	}
	leaf := b.leaves[n-1]
	leaf.entries = append(leaf.entries, entry[V]{key, version, value})
	return nil
}

// Tree returns what was added. The builder must not be used again.
func (b *Builder[V]) Tree() Tree[V] {
	level := b.leaves
	b.leaves = nil
	if len(level) == 0 {
		return Tree[V]{}
	}
	for _, n := range level {
		n.sum()
	}
	for len(level) > 1 {
		level = parents(level)
	}
	return Tree[V]{level[0]}
}

// parents groups nodes evenly below as few inner nodes as fill allows.
func parents[V any](level []*node[V]) []*node[V] {
	groups := (len(level) + fill - 1) / fill
	up := make([]*node[V], 0, groups)
	for g := range groups {
		kids := level[g*len(level)/groups : (g+1)*len(level)/groups]
		n := &node[V]{kids: append([]*node[V](nil), kids...), firsts: make([]string, len(kids))}
		for i, k := range kids {
			n.firsts[i] = k.least()
		}
		n.sum()
		up = append(up, n)
	}
	return up
}
