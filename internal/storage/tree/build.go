package tree

import "fmt"

// Builder builds a Tree from keys in ascending order, in linear time.
type Builder[V any] struct {
	leaves []*node[V]
	last   string
}

// loadEntries is the number of entries per node after a load. Nodes are not full, so that the first
// writes do not have to split every leaf.
const loadEntries = maxEntries * 3 / 4

// Add appends a key, which must be greater than the previous one.
func (b *Builder[V]) Add(key string, version int64, value V) error {
	n := len(b.leaves)
	if n > 0 && key <= b.last {
		return fmt.Errorf("tree: key %q comes after %q", key, b.last)
	}
	b.last = key
	if n == 0 || len(b.leaves[n-1].entries) == loadEntries {
		b.leaves = append(b.leaves, &node[V]{entries: make([]entry[V], 0, loadEntries)})
		n++
	}
	leaf := b.leaves[n-1]
	leaf.entries = append(leaf.entries, entry[V]{key, version, value})
	return nil
}

// Tree returns the tree of all added keys. The builder must not be used again.
func (b *Builder[V]) Tree() Tree[V] {
	level := b.leaves
	b.leaves = nil
	if len(level) == 0 {
		return Tree[V]{}
	}
	for _, n := range level {
		n.summarize()
	}
	for len(level) > 1 {
		level = parents(level)
	}
	return Tree[V]{level[0]}
}

// parents distributes nodes evenly among as few inner nodes as loadEntries allows.
func parents[V any](level []*node[V]) []*node[V] {
	groups := (len(level) + loadEntries - 1) / loadEntries
	up := make([]*node[V], 0, groups)
	for g := range groups {
		children := level[g*len(level)/groups : (g+1)*len(level)/groups]
		n := &node[V]{children: append([]*node[V](nil), children...), bounds: make([]string, len(children))}
		for i, k := range children {
			n.bounds[i] = k.lowerBound()
		}
		n.summarize()
		up = append(up, n)
	}
	return up
}
