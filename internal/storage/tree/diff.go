package tree

import (
	"slices"
	"strings"
)

// Diff yields, in key order, what t and an older tree hold at the keys that start with prefix and whose versions are not
// the same, until yield returns false: the zero V where one of them has no such key. It does not look below nodes that both share, so that
// it costs little where little has changed.
func (t Tree[V]) Diff(older Tree[V], prefix string, yield func(was, is V) bool) {
	diff(older.root, t.root, prefix, yield)
}

// diff allocates nothing where nothing differs.
func diff[V any](a, b *node[V], prefix string, yield func(was, is V) bool) bool {
	if a == b {
		return true
	}
	if !alike(a, b) {
		return merge(a.slice(prefix), b.slice(prefix), yield)
	}
	first := a.child(prefix)
	for i := first; i < len(a.kids) && (i == first || strings.HasPrefix(a.firsts[i], prefix)); i++ {
		if !diff(a.kids[i], b.kids[i], prefix, yield) {
			return false
		}
	}
	return true
}

// alike reports inner nodes that part their keys in the same way.
func alike[V any](a, b *node[V]) bool {
	return a != nil && b != nil && !a.leaf() && !b.leaf() && len(a.firsts) == len(b.firsts) && slices.Equal(a.firsts[1:], b.firsts[1:])
}

// slice is the entries whose keys start with prefix, in order.
func (n *node[V]) slice(prefix string) (out []entry[V]) {
	switch {
	case n == nil:
		return nil
	case n.leaf():
		start := n.find(prefix)
		end := start
		for end < len(n.entries) && strings.HasPrefix(n.entries[end].key, prefix) {
			end++
		}
		return n.entries[start:end]
	}
	first := n.child(prefix)
	for i := first; i < len(n.kids) && (i == first || strings.HasPrefix(n.firsts[i], prefix)); i++ {
		out = append(out, n.kids[i].slice(prefix)...)
	}
	return out
}

// merge yields what differs in two sorted lists.
func merge[V any](a, b []entry[V], yield func(was, is V) bool) bool {
	var none V
	for len(a) > 0 || len(b) > 0 {
		was, is := none, none
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].key < b[0].key:
			was, a = a[0].value, a[1:]
		case len(a) == 0 || b[0].key < a[0].key:
			is, b = b[0].value, b[1:]
		default:
			same := a[0].version == b[0].version
			was, is, a, b = a[0].value, b[0].value, a[1:], b[1:]
			if same {
				continue
			}
		}
		if !yield(was, is) {
			return false
		}
	}
	return true
}

// Part is a tree of which nothing is known but the keys that start with prefix: good as the older one of Diff, for that prefix, and for
// nothing else. It shares what it can, and keeps little else alive.
func (t Tree[V]) Part(prefix string) Tree[V] { return Tree[V]{part(t.root, prefix)} }

func part[V any](n *node[V], prefix string) *node[V] {
	if n == nil || n.leaf() {
		return n
	}
	kids := make([]*node[V], len(n.kids)) // as many, so that diff finds them alike
	first := n.child(prefix)
	last := first
	for last+1 < len(kids) && strings.HasPrefix(n.firsts[last+1], prefix) {
		last++
	}
	copy(kids[first:], n.kids[first:last+1])
	kids[first] = part(kids[first], prefix) // it may have others at its edge
	if last > first {
		kids[last] = part(kids[last], prefix)
	}
	return &node[V]{firsts: n.firsts, kids: kids}
}
