package tree

import (
	"slices"
	"sort"
	"strings"
)

// Diff yields, in key order, what t and an older tree hold at the keys that start with prefix and whose versions are not
// the same, until yield returns false: the zero V where one of them has no such key. It does not look below nodes that both share, so that
// it costs little where little has changed.
func (t Tree[V]) Diff(older Tree[V], prefix string, yield func(was, is V) bool) {
	diff(older.root, t.root, prefix, yield)
}

// diff yields what differs below a prefix.
func diff[V any](a, b *node[V], prefix string, yield func(was, is V) bool) bool {
	if a == b {
		return true
	}
	if !alike(a, b) {
		return merge(a.slice(prefix), b.slice(prefix), yield)
	}
	for i, end := a.child(prefix), past(a.firsts[1:], prefix); i <= end; i++ {
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

// past counts the keys that come before the end of a prefix. It allocates nothing, as a comparison at each write must not.
func past(keys []string, prefix string) int {
	return sort.Search(len(keys), func(i int) bool { return keys[i] > prefix && !strings.HasPrefix(keys[i], prefix) })
}

// slice is the entries below a prefix, in order.
func (n *node[V]) slice(prefix string) (out []entry[V]) {
	switch {
	case n == nil:
		return nil
	case n.leaf():
		from := n.find(prefix)
		size := sort.Search(len(n.entries)-from, func(i int) bool { return !strings.HasPrefix(n.entries[from+i].key, prefix) })
		return n.entries[from : from+size]
	}
	for i, end := n.child(prefix), past(n.firsts[1:], prefix); i <= end; i++ {
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
