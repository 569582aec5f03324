package tree

import "strings"

// Diff yields, in key order, what t and an older tree hold at the keys that start with prefix and whose versions are not
// the same, until yield returns false: the zero V where one of them has no such key. It does not look below nodes that both share, so that
// it costs little where little has changed.
func (t Tree[V]) Diff(older Tree[V], prefix string, yield func(was, is V) bool) {
	diff(older.root, t.root, prefix, yield)
}

// diff allocates nothing where nothing has come or gone.
func diff[V any](a, b *node[V], prefix string, yield func(was, is V) bool) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil || a.leaf() || b.leaf() {
		return merge(a.slice(prefix), b.slice(prefix), yield)
	}
	more := true
	for i, j := a.child(prefix), b.child(prefix); more; {
		k, l := together(a.firsts, b.firsts, i+1, j+1)
		if k == i+1 && l == j+1 {
			more = diff(a.kids[i], b.kids[j], prefix, yield)
		} else { // kids have been split, or joined
			more = merge(slice(a.kids[i:k], prefix), slice(b.kids[j:l], prefix), yield)
		}
		if i, j = k, l; i == len(a.kids) || !strings.HasPrefix(a.firsts[i], prefix) {
			break
		}
	}
	return more
}

// together is where, from i and j on, two inner nodes part their keys in the same way; at their ends if nowhere.
func together(a, b []string, i, j int) (int, int) {
	for i < len(a) && j < len(b) {
		switch {
		case a[i] < b[j]:
			i++
		case b[j] < a[i]:
			j++
		default:
			return i, j
		}
	}
	return len(a), len(b)
}

// slice is the entries whose keys start with prefix, in order.
func (n *node[V]) slice(prefix string) []entry[V] {
	switch {
	case n == nil:
		return nil
	case !n.leaf():
		first := n.child(prefix)
		last := first + 1
		for last < len(n.kids) && strings.HasPrefix(n.firsts[last], prefix) {
			last++
		}
		return slice(n.kids[first:last], prefix)
	}
	start := n.find(prefix)
	end := start
	for end < len(n.entries) && strings.HasPrefix(n.entries[end].key, prefix) {
		end++
	}
	return n.entries[start:end]
}

// slice is those of neighbours.
func slice[V any](kids []*node[V], prefix string) (out []entry[V]) {
	for _, k := range kids {
		out = append(out, k.slice(prefix)...)
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
